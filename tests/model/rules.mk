# The labels of the atomic operations against docs/MEMORY-MODEL.md.
TEST_PROGRAMS += model:tests/model/check_labels.py
