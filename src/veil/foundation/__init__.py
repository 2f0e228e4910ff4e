"""Foundation: seeds and streams, files, TOML and workers, which every package may use and which know none of them."""
