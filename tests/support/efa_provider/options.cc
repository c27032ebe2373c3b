#include "options.h"

#include <cstdlib>
#include <sstream>

namespace shoal::test::efa {
namespace {

std::string text_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

std::int64_t number_of(const char* variable, std::int64_t otherwise) {
  const std::string text = text_of(variable);
  return text.empty() ? otherwise : std::strtoll(text.c_str(), nullptr, 10);
}

}  // namespace

Options read_options() {
  Options options;
  options.seed = static_cast<std::uint64_t>(number_of("SHOAL_TEST_EFA_SEED", 1));
  options.delay_us = number_of("SHOAL_TEST_EFA_DELAY_US", 0);
  options.loss_per_mille = static_cast<std::uint32_t>(number_of("SHOAL_TEST_EFA_LOSS", 0));
  const std::string deaf = text_of("SHOAL_TEST_EFA_DEAF");
  if (deaf.starts_with("/"))
    options.deaf_file = deaf;
  else if (!deaf.empty())
    options.deaf_after_seconds = std::strtod(deaf.c_str(), nullptr);
  return options;
}

std::vector<std::string> wanted_interfaces() {
  std::vector<std::string> names;
  std::istringstream list(text_of("SHOAL_TEST_EFA_INTERFACES"));
  for (std::string name; std::getline(list, name, ',');)
    if (!name.empty()) names.push_back(name);
  return names;
}

Hmem offered_hmem() {
  const std::string text = text_of("SHOAL_TEST_EFA_HMEM");
  return text.empty() ? Hmem::none : text == "copies" ? Hmem::copies : Hmem::p2p;
}

std::string wanted_fabric() { return text_of("SHOAL_TEST_EFA_FABRIC"); }

}  // namespace shoal::test::efa
