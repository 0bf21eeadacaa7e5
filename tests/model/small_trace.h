/* A trace whose rings have one place: the second event is written over the first. */
#ifndef CW_TESTS_MODEL_SMALL_TRACE_H
#define CW_TESTS_MODEL_SMALL_TRACE_H

#define CW_TRACE_EVENTS    1u
#define CW_TRACE_UNDER_WAY 1u
#define CW_TRACE_FUNCTIONS 1u

#endif
