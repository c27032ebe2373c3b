#!/usr/bin/env python3
"""Writes tests/golden/hub_cache.json: environments, and the folder in which huggingface_hub keeps models with each."""
import json
import os
import subprocess
import sys
from pathlib import Path

OUT = Path(__file__).resolve().parents[2] / "tests" / "golden" / "hub_cache.json"
VARIABLES = {"HF_HUB_CACHE": "/a/hub", "HUGGINGFACE_HUB_CACHE": "/b/hub", "HF_HOME": "/c/hf", "XDG_CACHE_HOME": "/d"}
NAMES = list(VARIABLES)
ENVIRONMENTS = [{name: VARIABLES[name] for i, name in enumerate(NAMES) if bits >> i & 1} for bits in range(16)] + [
    {"HF_HUB_CACHE": "~/hub"}, {"HUGGINGFACE_HUB_CACHE": "$SCRATCH/hub"}, {"HF_HOME": "~/${PLACE}/hf"},
    {"XDG_CACHE_HOME": "~/x"}, {"HF_HOME": "$NOT_SET/hf"}]

cases = []
for environment in ENVIRONMENTS:
    known = {"HOME": "/home/ann", "SCRATCH": "/scratch/ann", "PLACE": "place", **environment}
    folder = subprocess.run([sys.executable, "-c", "from huggingface_hub.constants import HF_HUB_CACHE as f; print(f)"],
                            env={"PATH": os.environ["PATH"], **known}, capture_output=True, text=True, check=True)
    cases.append({"environment": known, "folder": folder.stdout.strip()})
OUT.write_text(json.dumps(cases, indent=1) + "\n")
