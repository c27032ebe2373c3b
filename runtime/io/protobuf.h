// Protocol buffers' wire format (protobuf.dev/programming-guides/encoding): fields by number, for
// the few small messages that Shoal reads or writes without a code generator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shoal {

// The fields of one message, in file order. Throws corrupt_data with `name` and the byte if the
// message does not follow the format.
class ProtobufReader {
 public:
  // `message` must outlive the reader; `name` (a path) appears in errors.
  ProtobufReader(std::string_view message, std::string name)
      : message_(message), name_(std::move(name)) {}

  bool next();  // false at the end

  std::uint32_t field() const { return field_; }
  // Value of the current field; throws corrupt_data if its wire type differs.
  std::uint64_t integer() const;   // varint
  float real() const;              // 32 bits
  std::string_view bytes() const;  // a string, bytes or a message

 private:
  enum Wire : std::uint32_t { varint = 0, fixed64 = 1, length = 2, fixed32 = 5 };
  std::uint64_t read_varint();
  std::string_view take(std::uint64_t count);
  void want(Wire wire) const;

  std::string_view message_;
  std::string name_;
  std::size_t at_ = 0;
  std::uint32_t field_ = 0, wire_ = 0;
  std::uint64_t value_ = 0;
  std::string_view bytes_;
};

// Builds one message, with fields in the order of the calls.
class ProtobufWriter {
 public:
  ProtobufWriter& integer(std::uint32_t field, std::uint64_t value);
  ProtobufWriter& real(std::uint32_t field, float value);  // 32 bits
  ProtobufWriter& real64(std::uint32_t field, double value);
  ProtobufWriter& bytes(std::uint32_t field, std::string_view value);
  const std::string& message() const { return message_; }

 private:
  void varint(std::uint64_t value);
  void tag(std::uint32_t field, std::uint32_t wire) { varint(std::uint64_t{field} << 3 | wire); }
  std::string message_;
};

}  // namespace shoal
