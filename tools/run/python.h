/*
 * Becoming a Python: for `cableway run` of a .py file, and for the commands that are written in it.
 */
#ifndef CW_TOOLS_RUN_PYTHON_H
#define CW_TOOLS_RUN_PYTHON_H

/* Runs $CABLEWAY_PYTHON, else python3 of PATH, else python, in place of this process; words[0] is
 * set to its name, the rest are its arguments. Returns errno, if none can be run. */
int python_become(char **words);

/* Says why python_become() failed for what needed it ("train.py", "exporter"). Returns code. */
int python_refused(int code, const char *what, int error);

#endif
