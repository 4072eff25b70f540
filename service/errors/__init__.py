"""The error tree: gateway.py draws it, overload.py, request.py and admin.py are branches of it."""
