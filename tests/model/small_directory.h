/* The directory in small, for the model: included before shm/names/directory.c and its writer. */
#include "shm/names/directory.h"

#undef CW_PAGE
#undef CW_INDEX_FIRST_SLOTS
#undef CW_DIRECTORY_RETRIES
#define CW_PAGE              64u /* segments here are not rounded up */
#define CW_INDEX_FIRST_SLOTS 4u  /* the third key needs a larger index */
#define CW_DIRECTORY_RETRIES model_directory_retries
extern unsigned model_directory_retries; /* as the scenario says */
