#pragma once
// Terminal output of the command line tools: tables with aligned columns, and a progress bar for
// work that takes longer than a second.
//
// Bound: a bar draws at most ten times a second, on standard error, and only when that is a
// terminal.
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "common/clock.h"

namespace ems::terminal {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kRight;
};

// Rows of text under titles. Cells are UTF-8; each code point counts as one place. Threading: one
// thread.
class Table final {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // Missing cells are shown empty, surplus ones are dropped.
  void AddRow(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  // Title line and rows, two spaces between columns, no trailing spaces, a newline after each line.
  std::string Render() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Code points of UTF-8 text.
size_t Width(std::string_view text);

// "[#####-----]  50 %  32 MiB of 64 MiB  1.2 GB/s  27 s left", without a line end. `total` 0:
// unknown, no bar and no rest;
// with nothing done either, only the time.
std::string BarText(std::string_view label, uint64_t done, uint64_t total, std::string_view unit,
                    Duration elapsed);

struct ProgressOptions {
  std::string label{};
  uint64_t total = 0;          // 0: unknown
  std::string unit = "bytes";  // "bytes" is shown as 1.5 MiB and GB/s, others as a plain count
  Duration delay = std::chrono::seconds(1);  // nothing is drawn before
  const Clock* clock = &Clock::System();
  std::FILE* out = nullptr;  // null: standard error if it is a terminal, else nothing is drawn
};

// Threading: one thread.
class ProgressBar final {
 public:
  explicit ProgressBar(ProgressOptions options);
  ~ProgressBar() { Clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Sets how much is done and redraws when it is time. Cost: one clock read most of the time.
  void Update(uint64_t done);
  // Takes the bar off the screen, so that other text can follow.
  void Clear();

 private:
  const ProgressOptions options_;
  std::FILE* const out_;
  const TimePoint start_;
  TimePoint next_draw_;
  size_t drawn_width_ = 0;
};

}  // namespace ems::terminal
