#!/bin/sh
# The guide's two machines as two nodes on one: keys, peers, brokers that listen, an array fetched and one put. Run where the
# wheel is installed.
set -eu
folder=$(mktemp -d)
for node in a b; do mkdir -m 700 "$folder/$node"; done
on() { # on NODE COMMAND...
    node=$1
    shift
    CABLEWAY_DIR="$folder/$node" CABLEWAY_NODE_DIR="$folder/$node/keys" "$@"
}
cleanup() {
    for node in a b; do on $node cableway stop --yes --force >/dev/null 2>&1 || true; done
    rm -rf "$folder"
}
trap cleanup EXIT
a=$(on a cableway keygen --node a)
b=$(on b cableway keygen --node b)
on a cableway peers add b 127.0.0.1:7402 --key "$b" --read 'shared/*' --write 'inbox/*'
on b cableway peers add a 127.0.0.1:7401 --key "$a" --read 'shared/*' --write 'inbox/*'
on a cablewayd --node a --listen 127.0.0.1:7401
on b cablewayd --node b --listen 127.0.0.1:7402
on a python3 -c 'import cableway as cw, numpy as np; cw.put("shared/weights", np.ones((1000, 1000)), keep=True)'
on b python3 -c 'import cableway as cw
w = cw.get("//a/shared/weights", timeout=20)
cw.put("//a/inbox/result", w.numpy().sum(axis=0))
assert "shared/weights" in str(cw.names("//a/")), cw.names("//a/")'
on a python3 -c 'import cableway as cw; assert cw.get("inbox/result", timeout=20).numpy().sum() == 1e6; print("two nodes: ok")'
