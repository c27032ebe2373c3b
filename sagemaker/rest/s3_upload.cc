// S3::upload: multipart uploads.
#include <algorithm>
#include <array>
#include <charconv>
#include <future>

#include <pugixml.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/sagemaker/rest/checksum.h"
#include "shoal/sagemaker/rest/encode.h"
#include "shoal/sagemaker/rest/fetch_pool.h"
#include "shoal/sagemaker/rest/s3.h"

namespace shoal::sagemaker {
namespace {

constexpr std::int64_t kMiB = 1 << 20, kGiB = 1024 * kMiB;
constexpr std::int64_t kSmallestPart = 5 * kMiB, kLargestPart = 5 * kGiB,
                       kLargestObject = 5 * 1024 * kGiB;
constexpr std::int64_t kMostParts = 10'000, kUsualPart = 16 * kMiB;

std::string query_of(int number, const std::string& upload) {
  Url query;
  if (number > 0) add_query(query, "partNumber", fmt::format("{}", number));
  add_query(query, "uploadId", upload);
  return query.query;
}

// The document's root if it has this name; otherwise an empty node.
pugi::xml_node root_of(pugi::xml_document& document, const std::string& body,
                       std::string_view name) {
  if (!document.load_buffer(body.data(), body.size())) return {};
  const pugi::xml_node root = document.document_element();
  return root.name() == name ? root : pugi::xml_node();
}

// Adds the source's bytes in [begin, end) to the checksum.
void add_bytes(Checksum& sum, const ByteSource& source, std::int64_t begin, std::int64_t end) {
  std::vector<std::byte> piece(static_cast<std::size_t>(std::min(end - begin, kMiB)));
  for (std::int64_t at = begin; at < end;) {
    const auto bytes =
        std::span(piece).first(static_cast<std::size_t>(std::min(end - at, std::ssize(piece))));
    source.read(at, bytes);
    sum.add(bytes);
    at += std::ssize(bytes);
  }
}

std::string sum_of(const std::string& algorithm, const ByteSource& source, std::int64_t begin,
                   std::int64_t end) {
  const auto sum = make_checksum(algorithm);
  if (sum == nullptr) return {};  // no MD5 in FIPS mode
  add_bytes(*sum, source, begin, end);
  return sum->finish();
}

// The ETag that S3 gives to an upload of the source: the MD5 of its bytes or, after an upload in
// parts, that of the parts' MD5s and their number.
std::string etag_of_upload(const ByteSource& source) {
  const std::int64_t size = source.size(), part_bytes = part_size(size);
  if (size <= part_bytes) return fmt::format("\"{}\"", hex(sum_of("md5", source, 0, size)));
  std::string sums;
  std::int64_t parts = 0;
  for (std::int64_t begin = 0; begin < size; begin += part_bytes, ++parts)
    sums += sum_of("md5", source, begin, std::min(begin + part_bytes, size));
  const auto whole = make_memory_source(sums, "the parts' MD5s");
  return fmt::format("\"{}-{}\"", hex(sum_of("md5", *whole, 0, whole->size())), parts);
}

}  // namespace

bool S3::has_same(const std::string& bucket, const ListedObject& listed,
                  const ByteSource& source) const {
  if (listed.size != source.size()) return false;
  if (listed.etag == etag_of_upload(source)) return true;
  const ObjectHead head = this->head({bucket, listed.key});
  return head.size == source.size() && !head.checksum.empty() && head.checksum_name != "md5" &&
         head.checksum == sum_of(head.checksum_name, source, 0, source.size());
}

std::int64_t part_size(std::int64_t object_bytes, std::int64_t wanted) {
  SHOAL_CHECK(object_bytes >= 0 && object_bytes <= kLargestObject,
              "an object of {} bytes: S3 takes at most {} (5 TiB)", object_bytes, kLargestObject);
  SHOAL_CHECK(wanted == 0 || (wanted >= kSmallestPart && wanted <= kLargestPart),
              "parts of {} bytes: S3 takes {} (5 MiB) to {} (5 GiB)", wanted, kSmallestPart,
              kLargestPart);
  const std::int64_t least = (object_bytes + kMostParts - 1) / kMostParts;
  SHOAL_CHECK(wanted == 0 || wanted >= least,
              "parts of {} bytes: {} bytes would need more than {} of them", wanted, object_bytes,
              kMostParts);
  if (wanted != 0) return wanted;
  return std::max(kUsualPart, (least + kMiB - 1) / kMiB * kMiB);
}

std::string S3::upload(const S3Name& name, const ByteSource& source,
                       const UploadOptions& options) const {
  const std::int64_t part_bytes = part_size(source.size(), options.part_bytes);
  if (source.size() <= part_bytes) {
    std::string etag = put(name, read_all(source, part_bytes), options.put);
    if (options.sent) options.sent(source.size());
    return etag;
  }
  return upload_parts(name, source, part_bytes, options);
}

std::string S3::upload_parts(const S3Name& name, const ByteSource& source, std::int64_t part_bytes,
                             const UploadOptions& options) const {
  const std::int64_t count = (source.size() + part_bytes - 1) / part_bytes;
  const std::string upload = start_upload(name, options.put);
  std::vector<std::string> etags(static_cast<std::size_t>(count));
  try {
    const auto send_part = [&](std::int64_t i) {
      const std::int64_t offset = i * part_bytes;
      std::string part(static_cast<std::size_t>(std::min(part_bytes, source.size() - offset)),
                       '\0');
      source.read(offset, std::as_writable_bytes(std::span(part)));
      etags[static_cast<std::size_t>(i)] = put_part(name, upload, static_cast<int>(i) + 1, part);
      if (options.sent) options.sent(std::ssize(part));
    };
    FetchPool pool(std::max(1, options.connections));
    std::vector<std::future<void>> parts;
    for (std::int64_t i = 0; i < count; ++i)
      parts.push_back(pool.run([&send_part, i] { send_part(i); }));
    // throws the first failure; the pool's destructor then runs before the abort
    for (auto& part : parts) part.get();
    return complete_upload(name, upload, etags, source.size());
  } catch (const std::exception&) {
    try {
      HttpRequest request;
      request.method = "DELETE";
      send(name, query_of(0, upload), std::move(request), {.operation = "AbortMultipartUpload"});
    } catch (const Error& error) {
      log::warn("parts of {} stay in S3, which counts them: {}", name.text(), error.what());
    }
    throw;
  }
}

std::string S3::start_upload(const S3Name& name, const PutOptions& options) const {
  HttpRequest request;
  request.method = "POST";
  request.headers = {{"Content-Type", options.content_type}};
  if (!options.kms_key_id.empty()) {
    request.headers.emplace_back("x-amz-server-side-encryption", "aws:kms");
    request.headers.emplace_back("x-amz-server-side-encryption-aws-kms-key-id", options.kms_key_id);
  }
  const HttpResponse response =
      send(name, "uploads", std::move(request), {.operation = "CreateMultipartUpload"});
  pugi::xml_document document;
  const std::string id =
      root_of(document, response.body, "InitiateMultipartUploadResult").child_value("UploadId");
  if (id.empty())
    throw_error(ErrorCode::corrupt_data, "S3 CreateMultipartUpload of {}: no UploadId",
                name.text());
  return id;
}

std::string S3::put_part(const S3Name& name, const std::string& upload, int number,
                         std::string_view body) const {
  HttpRequest request;
  request.method = "PUT";
  request.body = body;
  const HttpResponse response =
      send(name, query_of(number, upload), std::move(request), {.operation = "UploadPart"});
  const std::string* etag = find_header(response.headers, "etag");
  if (etag == nullptr)
    throw_error(ErrorCode::corrupt_data, "S3 UploadPart {} of {}: no ETag", number, name.text());
  return *etag;
}

std::string S3::complete_upload(const S3Name& name, const std::string& upload,
                                const std::vector<std::string>& etags, std::int64_t size) const {
  std::string body = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (std::size_t i = 0; i < etags.size(); ++i) {
    std::string etag;
    for (const char c : etags[i])
      etag += c == '"' ? "&quot;" : c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
    body += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", i + 1, etag);
  }
  body += "</CompleteMultipartUpload>";
  HttpRequest request;
  request.method = "POST";
  request.headers = {{"Content-Type", "application/xml"}};
  request.body = body;
  const auto is_error = [](const HttpResponse& response) {
    pugi::xml_document document;
    return !root_of(document, response.body, "CompleteMultipartUploadResult");
  };
  try {
    const HttpResponse response =
        send(name, query_of(0, upload), std::move(request),
             {.operation = "CompleteMultipartUpload", .is_error = is_error});
    pugi::xml_document document;
    return root_of(document, response.body, "CompleteMultipartUploadResult").child_value("ETag");
  } catch (const ServiceError& error) {
    // An earlier attempt may have completed the upload while its answer was lost.
    if (error.service_code() != "NoSuchUpload") throw;
    const ObjectHead done = head(name);
    if (done.size != size || !done.etag.ends_with(fmt::format("-{}\"", etags.size()))) throw;
    return done.etag;
  }
}

}  // namespace shoal::sagemaker
