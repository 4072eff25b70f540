"""The error tree: gateway.py draws it, request.py and admin.py are branches of it."""
