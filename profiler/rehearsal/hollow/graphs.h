/* Streams and events know of captures by their number, which is 0 where there is none. */
#include "hollow.h"

typedef struct { int priority; unsigned long long capture; } Stream; /* of a stream that was made: others are 0, 1, 2 */

unsigned long long capture_of(cudaStream_t s); /* that goes on in a stream */
void join_capture(cudaStream_t s, unsigned long long capture); /* if it goes on */
