#pragma once
// Line charts as an SVG file: panels side by side, one legend for all, points at named places of
// the x axis.
//
// Pure text, no library. Bound: 8 series a panel read well; nothing is checked about their colours.
#include <optional>
#include <string>
#include <vector>

namespace ems::bench {

struct PlotSeries {
  std::string name;   // in the legend; series of one name share its line there
  std::string color;  // "#1f6feb"
  bool dashed = false;
  bool bold = false;
  // One a place of the x axis; none where there is no figure. Not finite, or below zero, counts as
  // none; so does zero on a logarithmic axis.
  std::vector<std::optional<double>> values;
};

struct PlotPanel {
  std::string title;
  std::string x_label, y_label;
  std::vector<std::string> places;  // of the x axis
  bool log_y = false;               // decades; else from zero
  std::vector<PlotSeries> series;
};

struct Plot {
  std::string title, subtitle;
  std::vector<PlotPanel> panels;
};

// A whole SVG document. Texts are escaped. Panels without a figure say so.
std::string RenderSvg(const Plot& plot);

}  // namespace ems::bench
