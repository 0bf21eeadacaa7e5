/*
 * The raw client of the broker's own tests, for the programs of this folder as well.
 */
#include "tests/unit/raw_client.c"
