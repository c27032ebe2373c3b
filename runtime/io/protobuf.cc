#include "shoal/runtime/io/protobuf.h"

#include <bit>
#include <cstring>

#include "shoal/runtime/base/error.h"

namespace shoal {

// The format is little-endian, as are the machines that Shoal runs on.
static_assert(std::endian::native == std::endian::little);

std::uint64_t ProtobufReader::read_varint() {
  std::uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (at_ == message_.size()) break;
    const auto byte = static_cast<std::uint8_t>(message_[at_++]);
    value |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  throw_error(ErrorCode::corrupt_data, "{}: the number that ends at byte {} of {} has no end",
              name_, at_, message_.size());
}

std::string_view ProtobufReader::take(std::uint64_t count) {
  if (count > message_.size() - at_)
    throw_error(ErrorCode::corrupt_data,
                "{}: field {} at byte {} declares {} bytes, but {} are left", name_, field_, at_,
                count, message_.size() - at_);
  at_ += count;
  return message_.substr(at_ - count, count);
}

bool ProtobufReader::next() {
  if (at_ == message_.size()) return false;
  const std::uint64_t tag = read_varint();
  field_ = static_cast<std::uint32_t>(tag >> 3);
  wire_ = tag & 7;
  switch (wire_) {
    case varint:
      value_ = read_varint();
      break;
    case fixed64:
      bytes_ = take(8);
      break;
    case fixed32:
      bytes_ = take(4);
      break;
    case length:
      bytes_ = take(read_varint());
      break;
    default:
      throw_error(ErrorCode::corrupt_data, "{}: field {} at byte {} has the wire type {}", name_,
                  field_, at_, wire_);
  }
  return true;
}

void ProtobufReader::want(Wire wire) const {
  if (wire_ != wire)
    throw_error(ErrorCode::corrupt_data, "{}: field {} before byte {} has the wire type {}, not {}",
                name_, field_, at_, wire_, static_cast<std::uint32_t>(wire));
}

std::uint64_t ProtobufReader::integer() const {
  want(varint);
  return value_;
}

float ProtobufReader::real() const {
  want(fixed32);
  float value = 0;
  std::memcpy(&value, bytes_.data(), sizeof value);
  return value;
}

std::string_view ProtobufReader::bytes() const {
  want(length);
  return bytes_;
}

void ProtobufWriter::varint(std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) message_ += static_cast<char>(value | 0x80);
  message_ += static_cast<char>(value);
}

ProtobufWriter& ProtobufWriter::integer(std::uint32_t field, std::uint64_t value) {
  tag(field, 0);
  varint(value);
  return *this;
}

ProtobufWriter& ProtobufWriter::real(std::uint32_t field, float value) {
  tag(field, 5);
  message_.append(reinterpret_cast<const char*>(&value), sizeof value);
  return *this;
}

ProtobufWriter& ProtobufWriter::real64(std::uint32_t field, double value) {
  tag(field, 1);
  message_.append(reinterpret_cast<const char*>(&value), sizeof value);
  return *this;
}

ProtobufWriter& ProtobufWriter::bytes(std::uint32_t field, std::string_view value) {
  tag(field, 2);
  varint(value.size());
  message_.append(value);
  return *this;
}

}  // namespace shoal
