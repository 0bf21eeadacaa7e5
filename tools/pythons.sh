#!/bin/sh
# Prints the path of one working Python for each of 3.10 to 3.14, as far as this machine has them (PATH, then pyenv).
for version in 3.10 3.11 3.12 3.13 3.14; do
    for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
        if path=$("$python" -c 'import sys, venv, ensurepip; print(sys.executable)' 2>/dev/null); then
            echo "$path"
            break
        fi
    done
done
