"""The registry: every data set by its command-line name, with its files, its licence and its groups."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from veil.datasets.files import DataFile, data_folder, fetch
from veil.datasets.split import Split
from veil.errors import InputError


@dataclass(frozen=True, slots=True)
class Dataset:
    """What `veil data info` shows. `home` is the module and function that reads it, imported when it is needed.

    Args:
        name: Its name on the command line.
        summary: One line about it.
        groups: Which groups it has, in words.
        licence: Its licence, in words.
        home: Module and function that read it.
        listed: Name of the list of its files in that module.

    >>> dataset("adult").present()
    True
    """

    name: str
    summary: str
    groups: str
    licence: str
    home: str
    listed: str = "FILES"

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The raw files it reads; none where it is bundled."""
        module = import_module(self.home.partition(":")[0])
        files: tuple[DataFile, ...] = getattr(module, self.listed, ())
        return files

    def load(self, **options: Any) -> Split:
        """Read the data set.

        Args:
            options: Options of its loader, such as `seed`.

        Returns:
            Training and test rows.

        Raises:
            InputError: The loader has no such option, or a file is missing.
        """
        module, _, function = self.home.partition(":")
        loader: Callable[..., Split] = getattr(import_module(module), function)
        try:
            return loader(**options)
        except TypeError as error:
            if "keyword argument" not in str(error):
                raise
            raise InputError(f'data set "{self.name}": {error}') from error

    def present(self) -> bool:
        """Whether all its files are there.

        Returns:
            True if nothing has to be downloaded.
        """
        if not self.files:
            return True
        folder = data_folder()
        return all(
            (folder / file.path).exists() or (file.packed and (folder / file.path).with_suffix("").exists())
            for file in self.files
        )

    def fetch(self) -> list[str]:
        """Download what is missing, and say where everything lies.

        Returns:
            The path of each file.
        """
        return [str(fetch(file, self.name)) for file in self.files]


_ALL = (
    Dataset(
        "adult",
        "UCI Adult: 48,842 people, income above $50,000 (bundled)",
        "sex, or any crossing of columns",
        "CC BY 4.0",
        "veil.datasets.adult:load_adult_split",
    ),
    Dataset(
        "dutch",
        "Dutch census 2001: 60,420 people, prestigious occupation",
        "sex",
        "requires registration: not redistributed",
        "veil.datasets.dutch:load_dutch",
    ),
    Dataset(
        "mnist",
        "70,000 handwritten digits, 28 × 28",
        "digit",
        "CC BY-SA 3.0",
        "veil.datasets.mnist:load_mnist",
    ),
    Dataset(
        "unbalanced-mnist",
        "MNIST with 474 (ASC) or 500 (FDPG) eights among the training rows",
        "digit",
        "CC BY-SA 3.0",
        "veil.datasets.mnist:load_unbalanced_mnist",
    ),
    Dataset(
        "cifar10",
        "60,000 colour images of ten classes, 32 × 32",
        "class",
        "none stated",
        "veil.datasets.cifar10:load_cifar10",
    ),
    Dataset(
        "cifar100",
        "60,000 colour images of a hundred classes, 32 × 32",
        "fine class",
        "none stated",
        "veil.datasets.cifar100:load_cifar100",
    ),
    Dataset(
        "ctg",
        "UCI Cardiotocography: 2,126 fetal heart traces",
        "diagnosis, which is the owner too",
        "CC BY 4.0",
        "veil.datasets.ctg:load_ctg",
    ),
    Dataset(
        "surnames",
        "20,074 surnames from 18 languages as rows of characters",
        "language",
        "MIT",
        "veil.datasets.surnames:load_surnames",
    ),
    Dataset(
        "celeba",
        "202,599 faces with 40 attributes",
        "two attributes crossed: male × blond hair",
        "research only, by its website",
        "veil.datasets.celeba:load_celeba",
    ),
    Dataset(
        "bank-fraud",
        "Bank Account Fraud: a million applications, 1 % fraudulent",
        "fraud × age over 50",
        "not for commercial use, by its data sheet",
        "veil.datasets.bank_fraud:load_bank_fraud",
    ),
    Dataset(
        "utkface",
        "23,700 faces with age, gender and race",
        "race, or race × gender",
        "research only, by its website",
        "veil.datasets.utkface:load_utkface",
    ),
    Dataset(
        "civilcomments",
        "450,000 comments with identities they mention: toxic or not",
        "identity × label, overlapping",
        "CC0",
        "veil.datasets.texts:load_civilcomments",
    ),
    Dataset(
        "multinli",
        "433,000 pairs of sentences: does the second follow from the first?",
        "label × negation",
        "several, see its paper",
        "veil.datasets.texts:load_multinli",
        "MULTINLI",
    ),
    Dataset(
        "blogs",
        "Blog Authorship Corpus: 681,288 posts, two topics told apart",
        "gender × age above 35",
        "research only, by its website",
        "veil.datasets.texts:load_blogs",
        "BLOGS",
    ),
    Dataset(
        "inaturalist",
        "iNaturalist 2017: photographs of species by super category",
        "super category",
        "research only, by its website",
        "veil.datasets.inaturalist:load_inaturalist",
    ),
    Dataset(
        "pneumonia",
        "5,856 chest X-rays of children: normal, bacterial or viral pneumonia",
        "diagnosis; the ill allow a smaller ε",
        "CC BY 4.0",
        "veil.datasets.pneumonia:load_pneumonia",
    ),
)
DATASETS: dict[str, Dataset] = {dataset.name: dataset for dataset in _ALL}


def dataset(name: str) -> Dataset:
    """A data set by name; an unknown one raises `InputError` with the nearest known one.

    Args:
        name: One of `veil data list`.

    Returns:
        What is known about the data set, and how to load it.

    Raises:
        InputError: The name is unknown; the nearest known one is suggested.

    >>> dataset("minst")
    Traceback (most recent call last):
        ...
    veil.errors.InputError: unknown data set "minst": did you mean "mnist"?
    """
    if name not in DATASETS:
        close = difflib.get_close_matches(name, DATASETS, n=1)
        hint = f'did you mean "{close[0]}"?' if close else f"known are {', '.join(DATASETS)}"
        raise InputError(f'unknown data set "{name}": {hint}')
    return DATASETS[name]


def load(name: str, **options: Any) -> Split:
    """Training and test rows of a data set.

    Args:
        name: One of `veil data list`.
        options: Options of that data set, such as `groups`, `owners` or `seed`.

    Returns:
        Training and test rows as problems, and validation rows where the data set has some.

    Raises:
        InputError: The name or an option is unknown, or the raw files are missing.

    >>> load("adult", groups=("sex", "income")).train.public.groups[0]
    'Female × <=50K'
    """
    return dataset(name).load(**options)
