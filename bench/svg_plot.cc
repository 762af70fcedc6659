#include "bench/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

namespace ems::bench {
namespace {

// All in pixels.
constexpr double kPanelWidth = 560, kPanelHeight = 380;
constexpr double kLeft = 72, kRight = 24;  // of the plot area in its panel
constexpr double kTop = 156, kBelow = 72;  // above and below the plot areas
constexpr double kLegendTop = 82, kLegendRow = 21;
constexpr double kLegendMark = 26, kLegendGap = 34;
constexpr double kLetterWidth = 7.2;  // of 13 px text, about
constexpr int kTicksWanted = 6;

constexpr const char* kDashes = " stroke-dasharray=\"6 5\"";
constexpr std::string_view kInk = "#1f2328", kFaint = "#59636e", kGrid = "#e4e8ec";

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// How a value becomes a height, and where lines go across.
struct Axis {
  bool log = false;
  double low = 0, high = 1;
  std::vector<double> ticks;

  bool Shows(const std::optional<double>& value) const {
    return value && std::isfinite(*value) && (log ? *value > 0 : *value >= 0);
  }
  // 0 at the bottom, 1 at the top.
  double Share(double value) const {
    if (log) return std::log10(value / low) / std::log10(high / low);
    return (value - low) / (high - low);
  }
};

// 1, 2 or 5 times a power of ten, so that about kTicksWanted of them reach `high`.
double StepFor(double high) {
  const double rough = high / kTicksWanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

Axis AxisFor(const PlotPanel& panel) {
  Axis axis{.log = panel.log_y, .low = 0, .high = 0, .ticks = {}};
  double least = 0;
  for (const PlotSeries& series : panel.series) {
    for (const std::optional<double>& value : series.values) {
      if (!axis.Shows(value)) continue;
      least = axis.high <= 0 ? *value : std::min(least, *value);
      axis.high = std::max(axis.high, *value);
    }
  }
  if (axis.high <= 0) return axis;  // no ticks: nothing to show
  if (!axis.log) {
    const double step = StepFor(axis.high);
    const double steps = std::ceil(axis.high / step);
    axis.high = step * steps;
    for (int i = 0; i <= static_cast<int>(steps); ++i) axis.ticks.push_back(step * i);
    return axis;
  }
  const double first = std::floor(std::log10(least)), last = std::ceil(std::log10(axis.high));
  axis.low = std::pow(10, first);
  axis.high = std::pow(10, std::max(last, first + 1));
  for (double power = first; power <= std::max(last, first + 1); ++power) {
    axis.ticks.push_back(std::pow(10, power));
  }
  return axis;
}

std::string TickText(double value) {
  return value >= 1000
             ? fmt::format("{:.0f},{:03.0f}", std::floor(value / 1000), std::fmod(value, 1000))
             : fmt::format("{:g}", value);
}

// Writes one panel; x and y are of its upper left corner.
class PanelWriter final {
 public:
  PanelWriter(const PlotPanel& panel, double x, std::string* out)
      : panel_(panel), axis_(AxisFor(panel)), left_(x + kLeft), out_(out) {}

  void Write() {
    Text(left_, kTop - 14, "start", kInk, "font-weight=\"600\"", panel_.title);
    if (axis_.ticks.empty()) {
      Text(left_ + Width() / 2, kTop + kPanelHeight / 2, "middle", kFaint, "", "no figures");
      return;
    }
    Frame();
    for (const PlotSeries& series : panel_.series) Line(series);
  }

 private:
  static double Width() { return kPanelWidth - kLeft - kRight; }
  double X(size_t place) const {
    const auto places = static_cast<double>(std::max<size_t>(1, panel_.places.size()));
    return left_ + Width() * (static_cast<double>(place) + 0.5) / places;
  }
  double Y(double value) const { return kTop + kPanelHeight * (1 - axis_.Share(value)); }

  void Text(double x, double y, std::string_view anchor, std::string_view color,
            std::string_view more, std::string_view text) {
    fmt::format_to(std::back_inserter(*out_),
                   "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\" {}>{}</text>\n",
                   x, y, anchor, color, more, Escaped(text));
  }

  // Grid, axes and their labels.
  void Frame() {
    for (const double tick : axis_.ticks) {
      const bool bottom = tick == axis_.ticks.front();
      fmt::format_to(std::back_inserter(*out_),
                     "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" "
                     "stroke=\"{}\"/>\n",
                     left_, left_ + Width(), Y(tick), Y(tick), bottom ? kFaint : kGrid);
      Text(left_ - 8, Y(tick) + 4.5, "end", kFaint, "", TickText(tick));
    }
    for (size_t i = 0; i < panel_.places.size(); ++i) {
      Text(X(i), kTop + kPanelHeight + 20, "middle", kFaint, "", panel_.places[i]);
    }
    Text(left_ + Width() / 2, kTop + kPanelHeight + 46, "middle", kInk, "", panel_.x_label);
    const double x = left_ - 52, y = kTop + kPanelHeight / 2;
    Text(x, y, "middle", kInk, fmt::format("transform=\"rotate(-90 {:.1f} {:.1f})\"", x, y),
         panel_.y_label);
  }

  // A gap in the figures is a gap in the line.
  void Line(const PlotSeries& series) {
    std::string path, dots;
    bool drawing = false;
    for (size_t i = 0; i < std::min(series.values.size(), panel_.places.size()); ++i) {
      if (!axis_.Shows(series.values[i])) {
        drawing = false;
        continue;
      }
      const double x = X(i), y = Y(*series.values[i]);
      path += fmt::format("{}{:.1f} {:.1f}", drawing ? " L" : " M", x, y);
      dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"/>\n", x, y,
                          series.bold ? 4 : 3, series.color);
      drawing = true;
    }
    if (path.empty()) return;
    fmt::format_to(std::back_inserter(*out_),
                   "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" "
                   "stroke-linejoin=\"round\"{}/>\n{}",
                   path.substr(1), series.color, series.bold ? 3 : 2, series.dashed ? kDashes : "",
                   dots);
  }

  const PlotPanel& panel_;
  const Axis axis_;
  const double left_;
  std::string* const out_;
};

// Names in columns of one width, as many as fit; two rows for up to eight of usual length.
void WriteLegend(const Plot& plot, double width, std::string* out) {
  std::vector<const PlotSeries*> shown;
  size_t longest = 0;
  for (const PlotPanel& panel : plot.panels) {
    for (const PlotSeries& series : panel.series) {
      const bool known = std::any_of(shown.begin(), shown.end(), [&](const PlotSeries* other) {
        return other->name == series.name;
      });
      if (known) continue;
      shown.push_back(&series);
      longest = std::max(longest, series.name.size());
    }
  }
  const double column = kLegendMark + kLegendGap + kLetterWidth * static_cast<double>(longest);
  const auto columns = static_cast<size_t>(std::max(1.0, (width - kLeft - kRight) / column));
  for (size_t i = 0; i < shown.size(); ++i) {
    const PlotSeries& series = *shown[i];
    const size_t row = i / columns;
    const double x = kLeft + column * static_cast<double>(i % columns);
    const double y = kLegendTop + kLegendRow * static_cast<double>(row);
    fmt::format_to(
        std::back_inserter(*out),
        "<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"{}\"{}/>\n<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\">{}</text>\n",
        x, x + kLegendMark, y, y, series.color, series.bold ? 3 : 2, series.dashed ? kDashes : "",
        x + kLegendMark + 8, y + 4.5, kInk, Escaped(series.name));
  }
}

}  // namespace

std::string RenderSvg(const Plot& plot) {
  const double width = kPanelWidth * static_cast<double>(std::max<size_t>(1, plot.panels.size()));
  const double height = kTop + kPanelHeight + kBelow;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"system-ui, -apple-system, 'Segoe UI', "
      "'DejaVu Sans', sans-serif\" font-size=\"13\">\n"
      "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"#ffffff\"/>\n"
      "<text x=\"{2:.0f}\" y=\"32\" font-size=\"19\" font-weight=\"600\" fill=\"{3}\">{4}</text>\n"
      "<text x=\"{2:.0f}\" y=\"54\" fill=\"{5}\">{6}</text>\n",
      width, height, kLeft, kInk, Escaped(plot.title), kFaint, Escaped(plot.subtitle));
  WriteLegend(plot, width, &out);
  for (size_t i = 0; i < plot.panels.size(); ++i) {
    PanelWriter(plot.panels[i], kPanelWidth * static_cast<double>(i), &out).Write();
  }
  return out + "</svg>\n";
}

}  // namespace ems::bench
