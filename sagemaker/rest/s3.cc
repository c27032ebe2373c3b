#include "shoal/sagemaker/rest/s3.h"

#include <algorithm>
#include <array>

#include <pugixml.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/base64.h"
#include "shoal/sagemaker/rest/encode.h"

namespace shoal::sagemaker {
namespace {

std::int64_t parse_count(std::string_view text, std::string_view what) {
  const auto value = parse_number<std::int64_t>(text);
  if (!value || *value < 0)
    throw_error(ErrorCode::corrupt_data, "S3: {} is '{}'", what, shortened(text));
  return *value;
}

std::string header_or_empty(const HttpResponse& response, std::string_view name) {
  const std::string* value = find_header(response.headers, name);
  return value != nullptr ? *value : "";
}

// The 16 bytes of an ETag like "d41d8cd98f00b204e9800998ecf8427e" (with quotes); otherwise empty.
std::string md5_in(std::string_view etag) {
  if (etag.size() != 34 || etag.front() != '"' || etag.back() != '"') return {};
  std::string encoded;
  for (std::size_t i = 1; i + 1 < etag.size(); i += 2) (encoded += '%') += etag.substr(i, 2);
  const std::string bytes = percent_decode(encoded);
  return bytes.size() == 16 ? bytes : "";
}

void find_checksum(const HttpResponse& response, ObjectHead& head) {
  if (header_or_empty(response, "x-amz-checksum-type") != "COMPOSITE") {
    for (const std::string_view name : {"crc64nvme", "crc32c", "crc32", "sha256", "sha1"}) {
      const std::string value = header_or_empty(response, "x-amz-checksum-" + std::string(name));
      // A suffix "-N" marks a checksum of the parts' checksums.
      if (value.empty() || value.find('-') != value.npos) continue;
      head.checksum_name = name;
      const auto checksum = from_base64(value);
      if (!checksum)
        throw_error(ErrorCode::corrupt_data, "S3: x-amz-checksum-{} is '{}'", name,
                    shortened(value));
      head.checksum = *checksum;
      return;
    }
  }
  const std::string encryption = header_or_empty(response, "x-amz-server-side-encryption");
  if ((encryption.empty() || encryption == "AES256") &&
      header_or_empty(response, "x-amz-server-side-encryption-customer-algorithm").empty())
    head.checksum = md5_in(head.etag);
  if (!head.checksum.empty()) head.checksum_name = "md5";
}

}  // namespace

S3::S3(Wire wire, EndpointOptions options) : wire_(std::move(wire)), options_(std::move(options)) {}

ServiceClient S3::client_for(const std::string& bucket) const {
  EndpointOptions options = options_;
  {
    const std::lock_guard lock(regions_->mutex);
    if (const auto known = regions_->of_bucket.find(bucket); known != regions_->of_bucket.end())
      options.region = known->second;
  }
  return {wire_, resolve_endpoint(Service::s3, options)};
}

HttpResponse S3::send(const S3Name& name, const std::string& query, HttpRequest request,
                      const Call& call) const {
  for (bool moved = false;; moved = true) {
    const ServiceClient client = client_for(name.bucket);
    request.url = object_url(client.endpoint(), name);
    request.url.query = query;
    try {
      return client.send(request, call);
    } catch (ServiceError& error) {
      const std::string& region = error.bucket_region;
      if (moved || region.empty() || region == client.endpoint().region || options_.url) {
        error.in_operation(name.text());
        throw;
      }
      log::debug("bucket {} is in {}", name.bucket, region);
      const std::lock_guard lock(regions_->mutex);
      regions_->of_bucket[name.bucket] = region;
    }
  }
}

ObjectHead S3::head(const S3Name& name, int attempts) const {
  HttpRequest request;
  request.method = "HEAD";
  request.headers = {{"x-amz-checksum-mode", "ENABLED"}};
  const HttpResponse response =
      send(name, "", std::move(request), {.operation = "HeadObject", .attempts = attempts});
  ObjectHead head{
      .size = parse_count(header_or_empty(response, "content-length"), "Content-Length"),
      .etag = header_or_empty(response, "etag")};
  find_checksum(response, head);
  return head;
}

void S3::read(const S3Name& name, const std::string& etag, std::int64_t offset,
              std::span<std::byte> into, int attempts) const {
  if (into.empty()) return;
  const std::int64_t last = offset + std::ssize(into) - 1;
  HttpRequest request;
  request.headers = {{"Range", fmt::format("bytes={}-{}", offset, last)}};
  if (!etag.empty()) request.headers.emplace_back("If-Match", etag);
  request.into = into;
  HttpResponse response;
  try {
    response = send(
        name, "", std::move(request),
        {.operation = "GetObject", .attempts = attempts, .is_error = [&](const HttpResponse& got) {
           return got.status == 206 && got.filled != into.size();
         }});
  } catch (const ServiceError& error) {
    if (error.status() == 412 || (error.status() == 416 && !etag.empty()))
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("{} changed while it was read: it is no longer the one of ETag {}",
                              name.text(), etag),
                  "leave data as they are while a job reads them");
    if (error.status() == 416)
      throw_error(ErrorCode::corrupt_data, "{} has no bytes {} to {}", name.text(), offset, last);
    throw;
  }
  if (response.status != 206)
    throw_error(ErrorCode::io, "{}: asked for bytes {} to {}, got HTTP {} with all of them",
                name.text(), offset, last, response.status);
  const std::string range = header_or_empty(response, "content-range");
  if (!range.starts_with(fmt::format("bytes {}-{}/", offset, last)))
    throw_error(ErrorCode::corrupt_data, "{}: asked for bytes {} to {}, got '{}'", name.text(),
                offset, last, shortened(range));
}

std::vector<ListedObject> S3::list(const S3Name& prefix, int attempts) const {
  std::vector<ListedObject> objects;
  for (std::string token;;) {
    Url query;
    add_query(query, "list-type", "2");
    add_query(query, "encoding-type", "url");
    if (!prefix.key.empty()) add_query(query, "prefix", prefix.key);
    if (!token.empty()) add_query(query, "continuation-token", token);
    const HttpResponse response = send({prefix.bucket, ""}, query.query, {},
                                       {.operation = "ListObjectsV2", .attempts = attempts});
    pugi::xml_document document;
    const auto parsed = document.load_buffer(response.body.data(), response.body.size());
    const pugi::xml_node root = document.document_element();
    if (!parsed || std::string_view(root.name()) != "ListBucketResult")
      throw_error(ErrorCode::corrupt_data, "S3 ListObjectsV2 of {}: the answer is no list",
                  prefix.text());
    const bool encoded = std::string_view(root.child_value("EncodingType")) == "url";
    for (const pugi::xml_node& entry : root.children("Contents")) {
      std::string key = entry.child_value("Key");
      if (encoded) {
        std::replace(key.begin(), key.end(), '+', ' ');
        key = percent_decode(key);
      }
      objects.push_back({std::move(key), parse_count(entry.child_value("Size"), "Size"),
                         entry.child_value("ETag")});
    }
    if (std::string_view(root.child_value("IsTruncated")) != "true") return objects;
    std::string next = root.child_value("NextContinuationToken");
    if (next.empty() || next == token)
      throw_error(ErrorCode::corrupt_data, "S3 ListObjectsV2 of {}: more follows, but no token",
                  prefix.text());
    token = std::move(next);
  }
}

std::string S3::put(const S3Name& name, std::string_view body, const PutOptions& options) const {
  SHOAL_CHECK(!name.key.empty(), "{} names no object", name.text());
  HttpRequest request;
  request.method = "PUT";
  request.headers = {{"Content-Type", options.content_type}};
  if (!options.kms_key_id.empty()) {
    request.headers.emplace_back("x-amz-server-side-encryption", "aws:kms");
    request.headers.emplace_back("x-amz-server-side-encryption-aws-kms-key-id", options.kms_key_id);
  }
  request.body = body;
  const HttpResponse response = send(name, "", std::move(request), {.operation = "PutObject"});
  return header_or_empty(response, "etag");
}

void S3::remove(const S3Name& name) const {
  SHOAL_CHECK(!name.key.empty(), "{} names no object", name.text());
  HttpRequest request;
  request.method = "DELETE";
  send(name, "", std::move(request), {.operation = "DeleteObject"});
}

}  // namespace shoal::sagemaker
