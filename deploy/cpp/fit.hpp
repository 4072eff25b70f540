// Preprocessing as the contract has it: grey or RGB, scaled and cropped at the centre.
#pragma once

#include "image.hpp"

// Return the image in grey (1) or RGB (3), by the weights of ITU-R BT.601 in 16-bit fixed point, as Pillow has them.
Image with_channels(const Image &image, int channels);

// Return the image at that size, its middle kept and its aspect, scaled by bilinear interpolation over all source
// pixels that a target pixel covers: what ImageOps.fit of Pillow does, in the same integers.
Image fit(const Image &image, int width, int height);
