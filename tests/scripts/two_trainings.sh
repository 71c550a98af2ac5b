#!/bin/sh
# Two trainings, one after the other.
set -e
cd "$(dirname "$0")"
python growing.py --steps 3
python resume.py
echo both done
