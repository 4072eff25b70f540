#include "fit.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace {

// Weights are integers of this many binary places, and each pass rounds to 8 bits: both decide the last bit.
constexpr int kPrecision = 32 - 8 - 2;

// The source samples of one target sample, and what each counts.
struct Taps {
  int first = 0;
  std::vector<std::int32_t> weights;
};

// Return the taps of each of `target_size` samples over [start, stop) of `source_size` samples: a triangle as wide as
// the scale, at least one sample to each side, normalised.
std::vector<Taps> triangle(int source_size, float start, float stop, int target_size) {
  const double scale = static_cast<double>(stop - start) / target_size;
  const double reach = std::max(scale, 1.0);
  std::vector<Taps> all(target_size);
  for (int target = 0; target < target_size; ++target) {
    const double centre = start + (target + 0.5) * scale;
    const int first = std::max(static_cast<int>(centre - reach + 0.5), 0);
    const int last = std::min(static_cast<int>(centre + reach + 0.5), source_size);
    std::vector<double> weights;
    double sum = 0;
    for (int source = first; source < last; ++source) {
      const double distance = std::abs((source - centre + 0.5) * (1.0 / reach));
      weights.push_back(distance < 1 ? 1 - distance : 0);
      sum += weights.back();
    }
    all[target].first = first;
    for (const double weight : weights) {
      const double share = sum != 0 ? weight / sum : weight;
      all[target].weights.push_back(static_cast<std::int32_t>(0.5 + share * (1 << kPrecision)));
    }
  }
  return all;
}

std::uint8_t rounded(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kPrecision, 0, 255)); }

Image across(const Image &image, const std::vector<Taps> &taps) {
  const int width = static_cast<int>(taps.size()), channels = image.channels;
  Image out{width, image.height, channels, std::vector<std::uint8_t>(std::size_t(width) * image.height * channels)};
  for (int y = 0; y < image.height; ++y) {
    const std::uint8_t *row = image.samples.data() + std::size_t(y) * image.width * channels;
    for (int x = 0; x < width; ++x) {
      for (int channel = 0; channel < channels; ++channel) {
        std::int32_t sum = 1 << (kPrecision - 1);
        for (std::size_t tap = 0; tap < taps[x].weights.size(); ++tap) {
          sum += row[(taps[x].first + tap) * channels + channel] * taps[x].weights[tap];
        }
        out.samples[(std::size_t(y) * width + x) * channels + channel] = rounded(sum);
      }
    }
  }
  return out;
}

Image down(const Image &image, const std::vector<Taps> &taps) {
  const int height = static_cast<int>(taps.size());
  const std::size_t stride = std::size_t(image.width) * image.channels;
  Image out{image.width, height, image.channels, std::vector<std::uint8_t>(stride * height)};
  for (int y = 0; y < height; ++y) {
    for (std::size_t at = 0; at < stride; ++at) {
      std::int32_t sum = 1 << (kPrecision - 1);
      for (std::size_t tap = 0; tap < taps[y].weights.size(); ++tap) {
        sum += image.samples[(taps[y].first + tap) * stride + at] * taps[y].weights[tap];
      }
      out.samples[y * stride + at] = rounded(sum);
    }
  }
  return out;
}

}  // namespace

Image with_channels(const Image &image, int channels) {
  if (image.channels == channels) return image;
  const std::size_t num_pixels = std::size_t(image.width) * image.height;
  Image out{image.width, image.height, channels, std::vector<std::uint8_t>(num_pixels * channels)};
  for (std::size_t pixel = 0; pixel < num_pixels; ++pixel) {
    if (channels == 1) {
      const std::uint8_t *rgb = image.samples.data() + 3 * pixel;
      out.samples[pixel] =
          static_cast<std::uint8_t>((rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
    } else {
      std::fill_n(out.samples.begin() + 3 * pixel, 3, image.samples[pixel]);
    }
  }
  return out;
}

Image fit(const Image &image, int width, int height) {
  if (image.width == width && image.height == height) return image;
  const double here = static_cast<double>(image.width) / image.height;
  const double wanted = static_cast<double>(width) / height;
  double kept_width = image.width, kept_height = image.height;
  if (here > wanted) kept_width = wanted * image.height;
  if (here < wanted) kept_height = image.width / wanted;
  const double left = (image.width - kept_width) * 0.5, top = (image.height - kept_height) * 0.5;
  // Pillow hands the box over in single precision.
  const float x0 = static_cast<float>(left), x1 = static_cast<float>(left + kept_width);
  const float y0 = static_cast<float>(top), y1 = static_cast<float>(top + kept_height);
  const bool as_wide = image.width == width && x0 == 0 && x1 == static_cast<float>(width);
  const bool as_high = image.height == height && y0 == 0 && y1 == static_cast<float>(height);
  const auto to_width = [&](const Image &from) {
    return as_wide ? from : across(from, triangle(image.width, x0, x1, width));
  };
  const auto to_height = [&](const Image &from) {
    return as_high ? from : down(from, triangle(image.height, y0, y1, height));
  };
  // Each pass rounds, so their order shows. Pillow, since 13.0, begins with the one that drops more than twice as much.
  const bool down_first = image.height > height && image.height - height > 2 * (image.width - width);
  return down_first ? to_width(to_height(image)) : to_height(to_width(image));
}
