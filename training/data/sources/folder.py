"""A person's own images: a folder with one folder per class (the layout that torchvision calls ImageFolder)."""

from pathlib import Path

from PIL import Image

from training.data.decode import open_image
from training.data.sources.labelled import LabelledImages, check_classes
from training.errors import DataError

LEAST_CLASSES = 2
SPLITS = {"train", "training", "val", "valid", "validation", "test", "testing"}


def folder(root: Path) -> LabelledImages:
    """Return the images below each class folder, however deep, in an order that depends on their names alone.

    Files whose suffix belongs to no image format, and hidden ones, are left out.
    Raises DataError if the folder, a class or enough images in a class are missing, or there are not two classes.
    """
    if not root.is_dir():
        raise DataError(f"--data: {root} is not a folder")
    classes = class_folders(root)
    splits = [name for name in classes if name.lower() in SPLITS]
    if len(splits) > 1:
        raise DataError(
            f"--data: {root} holds {', '.join(splits)}, which are splits and no classes. Put all images of a class "
            f"into one folder, {root.name}/CLASS, and prepare splits them; or give one split, --data {root / splits[0]}"
        )
    if len(classes) < LEAST_CLASSES:
        found = f"one class folder ({classes[0]})" if classes else "no class folders"
        raise DataError(f"--data: {root} holds {found}; a classifier needs at least two, each with its images")
    suffixes = image_suffixes()
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found_files = sorted(path for path in (root / name).rglob("*") if _is_image(path, root, suffixes))
        if not found_files:
            raise DataError(f"--data: class {name} is empty: {root / name} holds no images")
        files += found_files
        labels += [label] * len(found_files)
    check_classes(classes, labels)
    return LabelledImages(
        description=f"{len(files)} images in {root.resolve().name}",
        classes=classes,
        labels=labels,
        keys=[path.relative_to(root).as_posix() for path in files],
        load=lambda index: open_image(files[index]),
        files=files,
    )


def class_folders(root: Path) -> list[str]:
    """Return the names of the folders in it that are not hidden, sorted."""
    return sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def image_suffixes() -> set[str]:
    """Return the suffixes of the formats that Pillow can read, not those that it only writes."""
    registered = Image.registered_extensions()
    return {suffix for suffix, format_name in registered.items() if format_name in Image.OPEN}


def _is_image(path: Path, root: Path, suffixes: set[str]) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    # Dangling links stay, so that they are reported as unreadable.
    return not hidden and path.suffix.lower() in suffixes and (path.is_file() or not path.exists())
