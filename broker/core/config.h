/*
 * Configuration: from files and environment to limits.
 *
 * The later the stronger: defaults, /etc/cableway.conf, the user's file (--config, else
 * $CABLEWAY_CONFIG, else ~/.config/cableway/cableway.conf), the environment (CABLEWAY_MAX_CLIENTS
 * and so on). Files are INI with two sections: [limits], and [bridge] with `listen` and `peer` (any
 * number of each) and `node`, which are handed to cableway-bridge. A file that was named and is not
 * there, an unknown section or key, and a bad value are errors.
 */
#ifndef CW_BROKER_CORE_CONFIG_H
#define CW_BROKER_CORE_CONFIG_H

#include "broker/core/limits.h"

struct cwd_remote_options;

/* file: what --config gave, or NULL. Returns 0 or -EINVAL with file, line and reason. */
int cwd_config_load(const char *file, struct cwd_limits *out, struct cwd_remote_options *remote);

#endif
