/* A program that has the library in itself, and needs no libcableway.so where it runs:
 * cc static.c $(pkg-config --cflags cableway) PREFIX/lib/libcableway.a -pthread && ./a.out
 * The broker is a program of its own: cablewayd stands in PATH, or CABLEWAY_BROKER names it.
 */
#include <cableway.h>
#include <stdio.h>

int main(void) {
    const int64_t shape[] = {4, 5};
    cw_layout layout = {.ndim = 2, .shape = shape, .dtype = "<f4"};
    cw_client *client;
    cw_array *array;
    int code = cw_dtype_size(layout.dtype, &layout.itemsize);
    if (code == 0)
        code = cw_connect(NULL, NULL, 0, &client);
    if (code == 0)
        code = cw_array_new(client, "cpu", &layout, CW_ZERO, &array);
    if (code) {
        fprintf(stderr, "static: %s\n", cw_error());
        return 1;
    }
    printf("%llu bytes of the library %s in this program\n",
           (unsigned long long)cw_array_nbytes(array), cw_version());
    cw_array_close(array);
    cw_client_unref(client);
    return CW_VERSION_NUMBER == cw_version_number() ? 0 : 1;
}
