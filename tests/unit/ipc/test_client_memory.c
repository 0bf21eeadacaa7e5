/*
 * A broker that gets no more memory: who asks it for some is told, and what it has promised it
 * keeps.
 */
#include "tests/unit/ipc/client_support.h"

#include <sys/resource.h>

#define THREADS 4
#define ARRAYS  64   /* of each thread */
#define MOST    5000 /* handles of one thread; there is memory for some hundred */

struct exporter {
    cw_array *arrays[ARRAYS];
    cw_handle handles[MOST];
    uint32_t made;
    int code;
    char sentence[512];
};

/* From now on, until it is fed, it has what its heap has. */
static void let_starve(cw_client *client, bool starve) {
    struct rlimit limit;
    pid_t pid = cw_client_broker_pid(client);
    assert_int_equal(prlimit(pid, RLIMIT_DATA, NULL, &limit), 0);
    limit.rlim_cur = starve ? 4096 : limit.rlim_max;
    assert_int_equal(prlimit(pid, RLIMIT_DATA, &limit, NULL), 0);
}

static void *export_many(void *context) {
    struct exporter *own = context;
    for (own->made = 0, own->code = 0; own->code == 0 && own->made < MOST; own->made++)
        own->code = cw_array_export(own->arrays[own->made % ARRAYS], 1, &own->handles[own->made]);
    own->made -= own->code != 0;
    snprintf(own->sentence, sizeof own->sentence, "%s", cw_error());
    return NULL;
}

static void a_handle_is_refused_where_the_broker_has_no_memory_for_it(void **state) {
    static struct exporter exporters[THREADS];
    (void)state;
#if CW_TEST_SANITIZED
    skip(); /* a sanitizer's own memory is bounded, too */
#endif
    cw_client *client = client_open();
    cw_handle handle;
    uint64_t made = 0;
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < ARRAYS; k++)
            assert_non_null(exporters[i].arrays[k] = bytes_new(client, 1000, i));
    cw_array *array = exporters[0].arrays[0];
    OK(cw_array_export(array, 1, &handle));
    let_starve(client, true);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, export_many, &exporters[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        made += exporters[i].made;
        assert_int_equal(exporters[i].code, -EDQUOT);
        assert_non_null(strstr(exporters[i].sentence, "memory"));
    }
    OK(cw_ping(client));
    assert_int_equal(gauge(client, CW_GAUGE_transits), made + 1); /* not one was lost */
    assert_int_equal(counter(client, CW_COUNTER_limits_hit), 0);
    OK(cw_array_export(array, 0, &handle)); /* this one needs none */
    let_starve(client, false);
    OK(cw_array_export(array, 1, &handle));
    for (int i = 0; i < THREADS; i++)
        for (uint32_t k = 0; k < exporters[i].made; k++)
            OK(cw_handle_discard(client, &exporters[i].handles[k]));
    OK(cw_ping(client));
    assert_int_equal(gauge(client, CW_GAUGE_transits), 2);
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < ARRAYS; k++)
            cw_array_close(exporters[i].arrays[k]);
    cw_client_unref(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_handle_is_refused_where_the_broker_has_no_memory_for_it,
                                        folder_make, folder_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
