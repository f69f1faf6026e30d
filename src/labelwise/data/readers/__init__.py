"""One file per format; each registers a `Format` that `labelwise.data.open_data` knows."""

from labelwise.data.readers import coco, imagefolder, keywords, manifest, nuswide, openimages, voc

__all__ = ["coco", "imagefolder", "keywords", "manifest", "nuswide", "openimages", "voc"]
