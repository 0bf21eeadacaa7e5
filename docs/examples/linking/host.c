/* A program with a plugin (plugin.c) that it loads, uses and unloads, twice: cc host.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    char path[4096], text[256];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    if (length < 0)
        return 1;
    path[length] = 0;
    strcpy(strrchr(path, '/') + 1, "plugin.so"); /* it lies beside this program */
    for (int i = 0; i < 2; i++) {
        void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        int (*run)(char *, unsigned long) = NULL;
        if (plugin)
            *(void **)&run = dlsym(plugin, "plugin_run");
        if (!run) {
            fprintf(stderr, "host: %s\n", dlerror());
            return 1;
        }
        int code = run(text, sizeof text);
        printf("%s\n", text);
        dlclose(plugin);
        if (code)
            return 1;
    }
    return 0;
}
