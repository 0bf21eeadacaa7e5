/*
 * Nodes: see node.h.
 */
#include "ipc/base/node.h"

#include <stdlib.h>
#include <string.h>

bool cw_node_valid(const char *node) {
    size_t length =
        strspn(node, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-");
    return length > 0 && length <= CW_NODE_MAX && !node[length] && *node != '.' && *node != '-';
}

bool cw_address_split(const char *text, char host[CW_ADDRESS_MAX + 1], char port[8]) {
    const char *colon = strrchr(text, ':'), *begin = text, *end = colon;
    if (!colon)
        return false;
    if (*text == '[') {
        if (colon == text || colon[-1] != ']')
            return false;
        begin++;
        end--;
    } else if (memchr(text, ':', (size_t)(colon - text))) {
        return false; /* an IPv6 address without brackets */
    }
    size_t length = (size_t)(end - begin), digits = strspn(colon + 1, "0123456789");
    if (length > CW_ADDRESS_MAX || digits == 0 || digits > 5 || colon[1 + digits] ||
        atoi(colon + 1) > 65535)
        return false;
    memcpy(host, begin, length);
    host[length] = 0;
    strcpy(port, colon + 1);
    return true;
}
