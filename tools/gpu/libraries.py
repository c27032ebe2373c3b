"""Finds the libraries that the bundle leaves out: CUDA's, and libstdc++ if the machine's is new enough. PyTorch's
own packages are preferred, so that both programs use the same libraries.
"""

import glob
import os
import re
import subprocess
import sys

# Sonames, and those that a program can do without.
WANTED = ["libcudart.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libnvrtc.so.13", "libnccl.so.2"]
OPTIONAL = {"libnvrtc.so.13", "libnccl.so.2"}


def python_directories():
    paths = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    # `python3` may belong to another venv than this process.
    try:
        out = subprocess.run(["python3", "-c", "import sys; print('\\n'.join(sys.path))"],
                             capture_output=True, text=True, timeout=30).stdout
        paths += [p for p in out.split("\n") if p.endswith(("site-packages", "dist-packages"))]
    except (OSError, subprocess.TimeoutExpired):
        pass
    found = []
    for path in dict.fromkeys(paths):
        found += sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib")))
    return found


def system_directories():
    toolkits = sorted(glob.glob("/usr/local/cuda*"), key=len)
    found = [d for t in toolkits for s in ("lib64", "lib", "targets/x86_64-linux/lib")
             if os.path.isdir(d := os.path.join(t, s))]
    return found + ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"]


def choose(prefer="python"):
    """{soname: path}, the directories for LD_LIBRARY_PATH in order, and the missing libraries."""
    python, system = python_directories(), system_directories()
    order = python + system if prefer == "python" else system + python
    chosen, missing = {}, []
    for name in WANTED:
        at = next((os.path.join(d, name) for d in order if os.path.exists(os.path.join(d, name))), "")
        if at:
            chosen[name] = at
        elif name not in OPTIONAL:
            missing.append(name)
    directories = [os.path.dirname(p) for p in chosen.values()]
    return chosen, list(dict.fromkeys(directories)), missing


def unresolved(program, environment):
    """Libraries that `ldd` cannot find for a program: names, and versions that a library lacks."""
    done = subprocess.run(["ldd", program], env=environment, capture_output=True, text=True)
    text = done.stdout + done.stderr
    return sorted(set(re.findall(r"(\S+) => not found|version `(\S+)' not found", text)))


def environment_for(programs, home, prefer="python"):
    """The programs' environment, lines that report the chosen libraries, and the unresolved ones for each program."""
    chosen, directories, missing = choose(prefer)
    lines = [f"{name}: {os.path.realpath(path)}" for name, path in chosen.items()]
    own = os.path.join(home, "lib")
    # The system's libstdc++ comes first: the bundle's may be older than CUDA's libraries require.
    for runtime in ([], [os.path.join(home, "lib-runtime")]):
        environment = dict(os.environ)
        # The loader searches the system's own directories anyway, last.
        path = [own, *runtime, *[d for d in directories if not d.startswith("/usr/lib")]]
        environment["LD_LIBRARY_PATH"] = ":".join(path)
        problems = {os.path.basename(p): u for p in programs if (u := unresolved(p, environment))}
        if not problems:
            break
    lines.append("LD_LIBRARY_PATH=" + environment["LD_LIBRARY_PATH"])
    if missing:
        problems["CUDA"] = missing
    return environment, lines, problems
