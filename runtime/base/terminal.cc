#include "shoal/runtime/base/terminal.h"

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include <poll.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"

namespace shoal::terminal {
namespace {

struct Character {
  std::size_t bytes = 0;  // 0: not UTF-8
  std::uint32_t value = 0;
};

// First character of a non-empty text. Overlong forms and surrogates are not UTF-8 (RFC 3629).
Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {1, lead};
  const std::size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < bytes) return {};
  std::uint32_t value = lead & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return {};
    value = value << 6 | (next & 0x3fu);
  }
  const bool overlong = (bytes == 3 && value < 0x800) || (bytes == 4 && value < 0x10000);
  if (overlong || (value >= 0xd800 && value < 0xe000) || value > 0x10ffff) return {};
  return {bytes, value};
}

bool commands(std::uint32_t c) {
  if (c < 0x20) return c != '\n' && c != '\t';
  return (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
         (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

}  // namespace

std::string visible(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    if (c.bytes == 0 || (commands(c.value) && c.value < 0x20)) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
      text.remove_prefix(1);
      continue;
    }
    if (commands(c.value))
      shown += fmt::format("\\u{:04x}", c.value);
    else
      shown += text.substr(0, c.bytes);
    text.remove_prefix(c.bytes);
  }
  return shown;
}

void write_result(std::FILE* stream, std::string_view text) {
  const std::string shown = ::isatty(::fileno(stream)) != 0 ? visible(text) : std::string(text);
  write(stream, shown);
}

void write(std::FILE* stream, std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stream) == text.size() || stream == stderr) return;
  throw_error(ErrorCode::io, "cannot write to standard output: {}", std::strerror(errno));
}

void finish_output() {
  errno = 0;
  // The stream's error flag shows that an earlier write failed.
  const bool had_failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !had_failed) return;
  const int reason = errno;
  pollfd out{.fd = ::fileno(stdout), .events = POLLOUT, .revents = 0};
  const bool is_left = ::poll(&out, 1, 0) > 0 && (out.revents & POLLERR) != 0;
  if (reason == EPIPE || is_left) return;
  throw_error(ErrorCode::io, "cannot write to standard output{}{}", reason == 0 ? "" : ": ",
              reason == 0 ? "" : std::strerror(reason));
}

}  // namespace shoal::terminal
