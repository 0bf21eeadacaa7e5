/* A plugin that uses arrays by name; its host knows nothing of cableway:
 * cc -shared -fPIC plugin.c $(pkg-config --cflags --libs cableway) -o plugin.so
 * The library stays loaded when the plugin is closed: it has handlers for fork.
 */
#include <cableway.h>

int plugin_run(char *text, unsigned long room);

static void say(char *text, unsigned long room, const char *sentence) {
    while (room > 1 && *sentence) {
        *text++ = *sentence++;
        room--;
    }
    if (room)
        *text = 0;
}

int plugin_run(char *text, unsigned long room) {
    const int64_t count = 100;
    const cw_layout layout = {.ndim = 1, .itemsize = 1, .shape = &count, .dtype = "|u1"};
    cw_client *client = NULL;
    cw_array *array = NULL;
    int code = cw_connect(NULL, NULL, 0, &client);
    if (code == 0)
        code = cw_array_new(client, "cpu", &layout, CW_ZERO, &array);
    if (code == 0)
        code = cw_array_put(array, "examples/plugin", CW_REPLACE, NULL, 0);
    if (code == 0)
        code = cw_remove(client, "examples/plugin");
    say(text, room, code ? cw_error() : "the plugin has put an array, and removed it");
    cw_array_close(array);
    cw_client_unref(client);
    return code;
}
