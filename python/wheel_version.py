"""The wheel's version: Shoal's version and the PyTorch that the wheel is built for, such as 0.1.0+torch2.15."""
import pathlib
import re
import subprocess
import sys

# -I uses the interpreter's own packages, even if pip builds in an isolated environment.
ASK = [sys.executable, "-I", "-c", "import torch; print(torch.__version__)"]


def dynamic_metadata(field, settings):
    if field != "version" or settings:
        raise RuntimeError(f"wheel_version gives the version, without settings, not {field} with {settings}")
    project = (pathlib.Path(__file__).parent.parent / "CMakeLists.txt").read_text()
    version = re.search(r"project\(Shoal VERSION ([\d.]+)", project)[1]
    torch = subprocess.run(ASK, capture_output=True, text=True)
    if torch.returncode != 0:  # CMake reports that it omits the backend
        return version
    return f"{version}+torch{'.'.join(torch.stdout.split('.')[:2])}"
