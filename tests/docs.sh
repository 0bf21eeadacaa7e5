#!/bin/sh
# The guide and the API reference in HTML, in $CABLEWAY_BUILD/docs. Each warning of Sphinx is an error: a docstring that is no
# reStructuredText, a link to nothing, a page that no table of contents names.
set -eu
out=${CABLEWAY_BUILD:?}/docs
exec "${PYTHON:-python3}" -m sphinx -q -W --keep-going -E -d "$out/.doctrees" -b html docs "$out"
