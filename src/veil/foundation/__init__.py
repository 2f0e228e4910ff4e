"""Foundation: seeds and streams, files, TOML and workers, which every package may use and which import none of them."""
