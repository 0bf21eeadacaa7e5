/*
 * The environment variables that cableway reads, so that one that is misspelt can be told.
 */
#ifndef CW_SHM_SESSION_VARIABLE_H
#define CW_SHM_SESSION_VARIABLE_H

#include <stdbool.h>

#define CW_VARIABLE_PREFIX "CABLEWAY_"
#define CW_VARIABLE_MAX    64 /* bytes of a name, with its end */

/* Is it one that some program or package of this version reads? */
bool cw_variable_is_known(const char *name);
/* Which one a name that is not known probably means: meant (CW_VARIABLE_MAX bytes) gets the known
 * one that differs from it in two letters at most. False: there is none. Names of other tools, of
 * later versions or of a site's own scripts so pass without a word. */
bool cw_variable_meant(const char *name, char *meant);

#endif
