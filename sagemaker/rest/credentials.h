// Credentials: keys, their sources, and when they are refreshed.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/sagemaker/rest/encode.h"
#include "shoal/sagemaker/rest/environment.h"
#include "shoal/sagemaker/rest/http.h"

namespace shoal::sagemaker {

// A text that is wiped on destruction. It cannot be printed: there is no formatter and no
// operator<<.
class Secret {
 public:
  Secret() = default;
  explicit Secret(std::string value) : value_(std::move(value)) {}
  Secret(const Secret&) = default;
  Secret& operator=(const Secret& other);
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  ~Secret();
  const std::string& reveal() const { return value_; }
  bool empty() const { return value_.empty(); }

 private:
  void wipe() noexcept;
  std::string value_;
};

struct Credentials {
  std::string access_key;  // an identifier, not a secret
  Secret secret_key;
  Secret session_token = {};                   // empty: none
  std::optional<Moment> expires = {};          // nullopt: never
  std::string source = "given by the caller";  // for messages: "profile dev", "environment"
};

// A source is configured but provides no credentials.
class CredentialsError : public Error {
 public:
  CredentialsError(ErrorCode code, std::string message, std::string remedy, bool may_pass)
      : Error(code, std::move(message), std::move(remedy)), may_pass_(may_pass) {}
  // The failure may be temporary: the source is down, or worked before.
  bool may_pass() const { return may_pass_; }

 private:
  bool may_pass_;
};

// One place for credentials. Returns nullopt if it is not configured; throws Error if it fails.
using CredentialSource = std::function<std::optional<Credentials>()>;

// Uses the first source that has credentials, and refreshes them before they expire. From 15
// minutes before expiry, failures are only logged, with at most one attempt per minute. From 10
// minutes before expiry, they are thrown. Thread-safe; one thread fetches while others wait.
class CredentialProvider {
 public:
  using Now = std::function<Moment()>;
  explicit CredentialProvider(std::vector<CredentialSource> sources,
                              Now now = std::chrono::system_clock::now);
  explicit CredentialProvider(Credentials credentials);  // fixed, without renewal

  // Throws not_found, naming the places searched, if no source has credentials.
  Credentials get();
  // Call if a service refused `rejected` as expired. Fetches new credentials, unless another thread
  // has already. Returns false if there are no newer ones: the keys do not expire, or the source
  // returned the same again.
  bool renew(const Credentials& rejected);

 private:
  Credentials fetch();  // call with the lock held
  // Local failures (a process, a file) of a source that worked before count as temporary.
  std::optional<Credentials> ask(const CredentialSource& source) const;
  std::vector<CredentialSource> sources_;
  Now now_;
  std::mutex mutex_;
  std::optional<Credentials> current_;
  bool is_chosen_ = false;  // sources_ holds only the source that succeeded
  Moment not_before_ = {};  // earliest next attempt to renew credentials that are still valid
};

struct ChainOptions {
  // If given explicitly, the environment's keys are not used.
  std::optional<std::string> profile = {};
  std::string region = "us-east-1";  // region of the STS that assumes roles
  // for AWS_CONTAINER_CREDENTIALS_RELATIVE_URI
  std::string container_host = "http://169.254.170.2";
  std::optional<std::string> sts_endpoint_url = {};
  std::function<void(double seconds)> sleep = {};  // between attempts; null: the thread sleeps
  CredentialProvider::Now now = std::chrono::system_clock::now;
};

// AWS's order: environment; a profile's role; web identity; a profile's keys or process; container;
// EC2 metadata (IMDSv2). Profiles that use SSO are refused by name. Lazy: reads nothing before
// get().
std::shared_ptr<CredentialProvider> make_credential_chain(Environment environment,
                                                          std::shared_ptr<Transport> transport,
                                                          ChainOptions options = {});

}  // namespace shoal::sagemaker
