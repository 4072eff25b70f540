#include "decode.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <regex>
#include <span>
#include <string_view>

#include <jpeglib.h>
// After jpeglib.h, whose types it needs.
#include <jerror.h>
#include <png.h>

namespace {

using Bytes = std::vector<std::uint8_t>;

// As on the Python side: each scan of a JPEG above these goes through the whole image once more.
constexpr std::uint64_t kFreeScans = 20;
constexpr std::uint32_t kOrientationTag = 0x0112, kLong = 4;

void check_size(std::uint64_t width, std::uint64_t height, std::uint64_t allowed) {
  if (width * height > allowed) {
    throw Refused("has " + std::to_string(width * height) + " pixels; allowed are " + std::to_string(allowed));
  }
}

void check_format(const std::string &name, const Limits &limits) {
  if (std::find(limits.formats.begin(), limits.formats.end(), name) == limits.formats.end()) {
    throw Refused("is a " + name + ", which the contract does not allow");
  }
}

// Return how often a decoder goes through a JPEG, at most.
std::uint64_t num_scans(const Bytes &content) {
  std::uint64_t count = 0;
  for (std::size_t at = 1; at < content.size(); ++at) count += content[at - 1] == 0xFF && content[at] == 0xDA;
  return count;
}

// Return the orientation that a TIFF block of EXIF holds; none where it holds none, or cannot be read.
// Source: TIFF 6.0, section 2, and EXIF 2.32, section 4.6.4.
std::optional<std::uint32_t> orientation(std::span<const std::uint8_t> block) {
  if (block.size() < 8 || (block[0] != 'I' && block[0] != 'M')) return {};
  const bool little = block[0] == 'I';
  auto number = [&](std::size_t at, std::size_t num_bytes) -> std::uint32_t {
    std::uint32_t value = 0;
    for (std::size_t index = 0; index < num_bytes; ++index) {
      value = value << 8 | block[at + (little ? num_bytes - 1 - index : index)];
    }
    return value;
  };
  const std::size_t directory = number(4, 4);
  if (directory + 2 > block.size()) return {};
  const std::size_t num_entries = number(directory, 2);
  for (std::size_t entry = 0; entry < num_entries; ++entry) {
    const std::size_t at = directory + 2 + 12 * entry;
    if (at + 12 > block.size()) return {};
    if (number(at, 2) == kOrientationTag) return number(at + 8, number(at + 2, 2) == kLong ? 4 : 2);
  }
  return {};
}

// Raise Refused for what Pillow would turn: by its EXIF or, where that names no orientation, by its XMP.
void check_upright(std::span<const std::uint8_t> exif, const std::string &xmp) {
  static const std::regex in_xmp("tiff:Orientation(=\"|>)([0-9])");  // Pillow's own
  std::string source = "EXIF";
  auto value = orientation(exif);
  if (std::smatch match; !value && std::regex_search(xmp, match, in_xmp)) {
    source = "XMP";
    value = std::stoi(match[2]);
  }
  if (value && *value >= 2 && *value <= 8) {
    throw Refused("is turned by its " + source + " orientation, " + std::to_string(*value) + "; save it upright");
  }
}

// Thrown through the C libraries: on the 64-bit platforms that torch has wheels for, all code can be unwound.
[[noreturn]] void png_failed(png_structp, png_const_charp message) {
  throw Refused(std::string("is no PNG that can be read: ") + message);
}

void png_warned(png_structp, png_const_charp) {}  // what can be read all the same

Image decode_png(const Bytes &content, const Limits &limits) {
  png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, nullptr, png_failed, png_warned);
  png_infop info = png_create_info_struct(png);
  struct Guard {
    png_structp &png;
    png_infop &info;
    ~Guard() { png_destroy_read_struct(&png, &info, nullptr); }
  } guard{png, info};
  struct Reader {
    const Bytes &content;
    std::size_t at = 0;
  } reader{content};
  png_set_read_fn(png, &reader, [](png_structp from, png_bytep into, std::size_t num_bytes) {
    auto &source = *static_cast<Reader *>(png_get_io_ptr(from));
    if (num_bytes > source.content.size() - source.at) png_error(from, "it is cut off");
    std::memcpy(into, source.content.data() + source.at, num_bytes);
    source.at += num_bytes;
  });
  png_read_info(png, info);
  const auto width = png_get_image_width(png, info), height = png_get_image_height(png, info);
  check_size(width, height, limits.max_pixels);
  const auto colour = png_get_color_type(png, info);
  if ((colour & PNG_COLOR_MASK_ALPHA) != 0 || png_get_valid(png, info, PNG_INFO_tRNS) != 0) {
    throw Refused("is partly transparent; lay it over a background first");
  }
  if (png_get_bit_depth(png, info) == 16) throw Refused("has 16 bits a sample; allowed are 8");
  png_set_expand(png);
  png_set_interlace_handling(png);
  png_read_update_info(png, info);

  Image image{static_cast<int>(width), static_cast<int>(height), png_get_channels(png, info), {}};
  const std::size_t stride = std::size_t{width} * image.channels;
  image.samples.resize(stride * height);
  std::vector<png_bytep> rows(height);
  for (std::size_t row = 0; row < height; ++row) rows[row] = image.samples.data() + row * stride;
  png_read_image(png, rows.data());
  png_read_end(png, info);
  png_uint_32 num_bytes = 0;
  png_bytep exif = nullptr;
  png_get_eXIf_1(png, info, &num_bytes, &exif);
  int num_texts = 0;
  png_textp texts = nullptr;
  png_get_text(png, info, &texts, &num_texts);
  std::string xmp;
  for (const auto &text : std::span(texts, num_texts)) {
    const std::string_view key = text.key;
    if (key == "XML:com.adobe.xmp") xmp = text.text;
    if (exif == nullptr && (key == "exif" || key == "Raw profile type exif")) {
      throw Refused("has its EXIF in a text chunk, where it is not looked into; save it without");
    }
  }
  check_upright({exif, num_bytes}, xmp);
  return image;
}

[[noreturn]] void jpeg_failed(j_common_ptr decoder) {
  char message[JMSG_LENGTH_MAX];
  decoder->err->format_message(decoder, message);
  throw Refused(std::string("is no JPEG that can be read: ") + message);
}

void jpeg_warned(j_common_ptr decoder, int level) {
  // As with Pillow, what is cut off is refused, and what is damaged is answered.
  if (level < 0 && decoder->err->msg_code == JWRN_JPEG_EOF) jpeg_failed(decoder);
}

Image decode_jpeg(const Bytes &content, const Limits &limits) {
  jpeg_error_mgr errors;
  jpeg_decompress_struct decoder;
  decoder.err = jpeg_std_error(&errors);
  errors.error_exit = jpeg_failed;
  errors.emit_message = jpeg_warned;
  jpeg_create_decompress(&decoder);
  struct Guard {
    jpeg_decompress_struct &decoder;
    ~Guard() { jpeg_destroy_decompress(&decoder); }
  } guard{decoder};
  jpeg_mem_src(&decoder, content.data(), content.size());
  jpeg_save_markers(&decoder, JPEG_APP0 + 1, 0xFFFF);
  jpeg_read_header(&decoder, TRUE);
  check_size(decoder.image_width, decoder.image_height,
             limits.max_pixels * kFreeScans / std::max(kFreeScans, num_scans(content)));
  std::string exif, xmp;
  for (auto marker = decoder.marker_list; marker != nullptr; marker = marker->next) {
    using namespace std::literals;
    static constexpr auto kExif = "Exif\0\0"sv, kXmp = "http://ns.adobe.com/xap/1.0/\0"sv;
    const std::string_view segment(reinterpret_cast<const char *>(marker->data), marker->data_length);
    if (segment.starts_with(kExif)) exif += segment.substr(kExif.size());  // may go on in further segments
    if (segment.starts_with(kXmp)) xmp = segment.substr(kXmp.size());
  }
  check_upright({reinterpret_cast<const std::uint8_t *>(exif.data()), exif.size()}, xmp);
  if (decoder.num_components != 1 && decoder.num_components != 3) {
    throw Refused("has " + std::to_string(decoder.num_components) + " channels (CMYK); allowed are grey and RGB");
  }
  decoder.out_color_space = decoder.num_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_start_decompress(&decoder);
  Image image{static_cast<int>(decoder.output_width), static_cast<int>(decoder.output_height),
              decoder.output_components, {}};
  const std::size_t stride = std::size_t{decoder.output_width} * image.channels;
  image.samples.resize(stride * image.height);
  while (decoder.output_scanline < decoder.output_height) {
    JSAMPROW row = image.samples.data() + stride * decoder.output_scanline;
    jpeg_read_scanlines(&decoder, &row, 1);
  }
  jpeg_finish_decompress(&decoder);
  return image;
}

}  // namespace

Image decode(const std::string &path, const Limits &limits) try {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Refused("cannot be opened");
  const Bytes content{std::istreambuf_iterator<char>(file), {}};
  if (content.size() >= 8 && png_sig_cmp(content.data(), 0, 8) == 0) {
    check_format("PNG", limits);
    return decode_png(content, limits);
  }
  if (content.size() >= 3 && content[0] == 0xFF && content[1] == 0xD8 && content[2] == 0xFF) {
    check_format("JPEG", limits);
    return decode_jpeg(content, limits);
  }
  throw Refused("is of no known format; allowed are PNG and JPEG");
} catch (const Refused &refused) {
  throw Refused(path + " " + refused.what());
}
