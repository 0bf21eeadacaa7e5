"""What an Array can do: copies, operators, hashes, pickles, DLPack."""
