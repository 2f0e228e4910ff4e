"""The local page of one's runs: `veil ui`. Loopback only, read-only, and nothing without the token.

`folders` reads what lies in the folder of runs, and trusts none of it; `runs` makes a list of it; `app` shows it;
`guard` decides who may look; `apart` does long work in processes of its own.
"""
