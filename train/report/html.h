// Text and tables of an HTML page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shoal::report {

// Escapes text for use between tags or in a quoted attribute: & < > " ' become entities; control
// characters and invalid UTF-8 become U+FFFD. So no name in a file can break a page or add a
// script.
std::string escape(std::string_view text);

// A table; html() returns "<div ...><table>...". Cells are HTML, already escaped. Columns after the
// first are styled as numbers unless `all_text` is set.
struct Table {
  std::vector<std::string> head = {};
  std::vector<std::vector<std::string>> rows = {};
  bool all_text = false;
  bool bars = false;  // the last column contains bars
  std::string html() const;
};

// A small line in a colour, for legends and tables.
std::string swatch(int colour, bool dashed = false, bool area = false);

}  // namespace shoal::report
