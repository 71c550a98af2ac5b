/* cuSPARSE whose products are never computed, and take no workspace; what else there is is generated: see SPARSE in build.py.
 * A product of two sparse matrices is refused: how many elements it has depends on their values. Without the header:
 * arguments that a function does not name are not read, and each is passed in a word. */
#include <stddef.h>
#include <stdlib.h>
#define API __attribute__((visibility("default")))
#define MAKES(name) API int name(void **out) { return *out = calloc(1, 64), 0; }
#define FREES(name) API int name(void *it) { return free(it), 0; }
MAKES(cusparseCreate) MAKES(cusparseCreateMatDescr) MAKES(cusparseCreateCoo) MAKES(cusparseCreateCsr)
MAKES(cusparseCreateDnMat) MAKES(cusparseCreateDnVec) MAKES(cusparseSpSM_createDescr) MAKES(cusparseSpSV_createDescr)
FREES(cusparseDestroy) FREES(cusparseDestroyMatDescr) FREES(cusparseDestroySpMat) FREES(cusparseDestroyDnMat)
FREES(cusparseDestroyDnVec) FREES(cusparseSpSM_destroyDescr) FREES(cusparseSpSV_destroyDescr)

#define SIX long a, long b, long c, long d, long e, long f /* the size is told by the 7th, 10th or 11th argument */
#define SORT(name) API int name(SIX, size_t *bytes) { return *bytes = 0, 0; }
#define VECTOR(name) API int name(SIX, long g, long h, long i, size_t *bytes) { return *bytes = 0, 0; }
#define MATRIX(name) API int name(SIX, long g, long h, long i, long j, size_t *bytes) { return *bytes = 0, 0; }
SORT(cusparseXcoosort_bufferSizeExt) SORT(cusparseXcsrsort_bufferSizeExt)
VECTOR(cusparseSpMV_bufferSize) VECTOR(cusparseSpSV_bufferSize)
MATRIX(cusparseSpMM_bufferSize) MATRIX(cusparseSpSM_bufferSize) MATRIX(cusparseSDDMM_bufferSize)
API const char *cusparseGetErrorString(int status) { return "a hollow GPU does not have it"; }
