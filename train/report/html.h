// Text and tables of a page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::report {

// What stands between tags or in a quoted attribute: & < > " ' become entities, control characters
// and bytes that are no UTF-8 become U+FFFD, so that no name of a file can break or script a page.
std::string escape(std::string_view text);

// "<div ...><table>...": cells are HTML already. The first column is text, others are numbers
// unless `all_text`.
struct Table {
  std::vector<std::string> head = {};
  std::vector<std::vector<std::string>> rows = {};
  bool all_text = false;
  bool bars = false;  // the last column has them
  std::string html() const;
};

// A line with a swatch of a colour, as it stands in legends and tables.
std::string swatch(int colour, bool dashed = false, bool area = false);

}  // namespace shoal::report
