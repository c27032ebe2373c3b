// Who signs: keys, where they come from, and when they are fetched anew.
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

// A text that is wiped when it goes, and that nothing prints: there is no formatter, no operator<<.
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
  std::string access_key;  // an identifier, no secret
  Secret secret_key;
  Secret session_token = {};                   // empty: none
  std::optional<Moment> expires = {};          // nothing: never
  std::string source = "given by the caller";  // for messages: "profile dev", "environment"
};

// A source that is set up gives none.
class CredentialsError : public Error {
 public:
  CredentialsError(ErrorCode code, std::string message, std::string remedy, bool may_pass)
      : Error(code, std::move(message), std::move(remedy)), may_pass_(may_pass) {}
  bool may_pass() const { return may_pass_; }  // it is down, or was there a while ago

 private:
  bool may_pass_;
};

// One place where credentials may be. Nothing: it is not set up; an Error: it is, and fails.
using CredentialSource = std::function<std::optional<Credentials>()>;

// The first source that has credentials, asked again before they expire: from 15 minutes before a
// failure is only logged, and the next attempt is a minute later; from 10 minutes before it is the
// caller's. Calls may be made from any thread at once; one of them fetches, others wait for it.
class CredentialProvider {
 public:
  using Now = std::function<Moment()>;
  explicit CredentialProvider(std::vector<CredentialSource> sources,
                              Now now = std::chrono::system_clock::now);
  explicit CredentialProvider(Credentials credentials);  // these, for ever

  // not_found, saying where was looked, when no source has any.
  Credentials get();
  // A service refused `rejected` as expired: they are fetched anew, unless that has happened since.
  // False where there is nothing newer (keys without expiry, or the same once more).
  bool renew(const Credentials& rejected);

 private:
  Credentials fetch();  // with the lock held
  // One that gave some before, and fails now by itself (a process, a file), may do so again.
  std::optional<Credentials> ask(const CredentialSource& source) const;
  std::vector<CredentialSource> sources_;
  Now now_;
  std::mutex mutex_;
  std::optional<Credentials> current_;
  bool is_chosen_ = false;  // sources_ is the one that has given some
  Moment not_before_ = {};  // of the next attempt to renew ones that still hold
};

struct ChainOptions {
  std::optional<std::string> profile =
      {};                            // given by name: the environment's keys are then not used
  std::string region = "us-east-1";  // whose STS roles are assumed at
  std::string container_host = "http://169.254.170.2";  // of AWS_CONTAINER_CREDENTIALS_RELATIVE_URI
  std::optional<std::string> sts_endpoint_url = {};
  std::function<void(double seconds)> sleep = {};  // between tries; null: the thread sleeps
  CredentialProvider::Now now = std::chrono::system_clock::now;
};

// AWS's order: environment; a profile's role; web identity; a profile's keys or process; container;
// EC2's metadata (IMDSv2). A profile that signs in by SSO is refused by name. Lazy: nothing is read
// before get().
std::shared_ptr<CredentialProvider> make_credential_chain(Environment environment,
                                                          std::shared_ptr<Transport> transport,
                                                          ChainOptions options = {});

}  // namespace shoal::sagemaker
