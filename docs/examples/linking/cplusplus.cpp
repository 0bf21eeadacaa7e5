// cableway.h from C++: c++ cplusplus.cpp $(pkg-config --cflags --libs cableway) && ./a.out
// Owners for a client and an array, and codes that become exceptions, are all that it takes.
#include <cableway.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <numeric>
#include <stdexcept>

static void check(int code) {
    if (code < 0)
        throw std::runtime_error(cw_error());
}

template <auto end> struct Ender {
    template <typename T> void operator()(T *thing) const { end(thing); }
};
using Client = std::unique_ptr<cw_client, Ender<cw_client_unref>>;
using Array = std::unique_ptr<cw_array, Ender<cw_array_close>>;

static Client connect() {
    cw_client *client = nullptr;
    check(cw_connect(nullptr, nullptr, 0, &client));
    return Client(client);
}

int main() try {
    Client client = connect();
    const std::int64_t count = 1000;
    cw_layout layout = {};
    layout.ndim = 1;
    layout.itemsize = sizeof(double);
    layout.shape = &count;
    layout.dtype = "<f8";
    cw_array *array = nullptr;
    check(cw_array_new(client.get(), "cpu", &layout, 0, &array));
    Array numbers(array);
    auto *values = static_cast<double *>(cw_array_data(array));
    std::iota(values, values + count, 1.0);
    check(cw_array_put(array, "examples/cplusplus", CW_REPLACE, nullptr, 0));
    check(cw_get(client.get(), "examples/cplusplus", CW_READONLY, &array));
    Array same(array);
    const auto *found = static_cast<const double *>(cw_array_data(array));
    double sum = std::accumulate(found, found + count, 0.0);
    check(cw_remove(client.get(), "examples/cplusplus"));
    std::cout << "cableway " << cw_version() << ": the sum is " << sum << '\n';
    return sum == 500500 ? 0 : 1;
} catch (const std::exception &error) {
    std::cerr << "cplusplus: " << error.what() << '\n';
    return 1;
}
