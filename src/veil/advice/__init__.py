"""Advice before anything is spent: what a budget can buy, from public facts and made-up rows."""
