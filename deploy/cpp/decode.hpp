// PNG and JPEG files to pixels.
#pragma once

#include <string>

#include "image.hpp"

// Return the pixels of a PNG or JPEG file; raises Refused for other formats, for what is broken or larger than the
// limits, and for what would need more than decoding: transparency, 16 bits a sample, CMYK, an orientation in EXIF or XMP other than upright.
Image decode(const std::string &path, const Limits &limits);
