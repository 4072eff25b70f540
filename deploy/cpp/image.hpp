// Pixels, and what can be wrong with a file of them.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

// What an image may be: the contract's, which the Python side keeps to as well.
struct Limits {
  std::uint64_t max_pixels = 25'000'000;
  std::vector<std::string> formats = {"PNG", "JPEG"};
};

// 8 bits a sample, rows from the top, channels interleaved: [height, width, channels], 1 (grey) or 3 (RGB) channels.
struct Image {
  int width = 0;
  int height = 0;
  int channels = 0;
  std::vector<std::uint8_t> samples;
};

// What the caller can mend: one line that names the file and what is allowed.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};
