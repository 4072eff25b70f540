import subprocess
import sys

HEAVY = ("torch", "numpy", "PIL", "sklearn", "matplotlib", "ts")


def test_importing_the_gateway_pulls_in_no_torch() -> None:
    program = f"import sys, service.app; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
