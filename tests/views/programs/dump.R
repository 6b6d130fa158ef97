# Writes the records that records.py describes: Rscript dump.R LIST, a file with lines "NETCDF<TAB>OUTPUT".
suppressMessages(library(ncdf4))
out <- NULL
int <- function(n) writeBin(as.integer(n), out, size = 4, endian = "little")
text <- function(t) { bytes <- charToRaw(enc2utf8(t)); int(length(bytes)); writeBin(bytes, out) }
numbers <- function(v) { int(0); int(length(v)); writeBin(as.double(v), out, size = 8, endian = "little") }
# Characters of texts that are padded to `width`.
characters <- function(v, width) {
  int(2); int(length(v) * width)
  for (t in v) { bytes <- charToRaw(t); writeBin(c(bytes, raw(width - length(bytes))), out) }
}

# A list of texts has a byte 0 between them.
texts <- function(v) {
  bytes <- unlist(lapply(v, function(t) c(charToRaw(t), as.raw(0))))
  int(2); int(length(bytes) - 1); writeBin(bytes[-length(bytes)], out)
}

attribute <- function(nc, variable, shown) {
  for (name in names(list <- ncatt_get(nc, variable))) {
    value <- list[[name]]
    int(2); text(shown); text(name)
    if (is.character(value)) texts(value) else numbers(value)
  }
}

variable <- function(nc, name, dims) {
  rank <- length(dims)
  # R has the first index vary fastest.
  sizes <- rev(vapply(dims, function(d) d$len, 0)); names <- rev(vapply(dims, function(d) d$name, ""))
  values <- tryCatch(ncvar_get(nc, name, raw_datavals = TRUE, collapse_degen = FALSE), error = function(e) e)
  if (inherits(values, "error")) { int(3); text(name); text(conditionMessage(values)); return() }
  # ncdf4 takes every variable with the name of a dimension for its only coordinate.
  if (!is.character(values) && !identical(as.integer(rev(dim(values))), as.integer(sizes))) {
    sizes <- rev(dim(values)); rank <- length(sizes); names <- rep("", rank)
  }
  int(1); text(name); int(rank)
  for (n in names) text(n)
  for (s in sizes) int(s)
  if (is.character(values)) characters(as.vector(values), sizes[rank]) else numbers(as.vector(values))
  attribute(nc, name, name)
}

for (line in readLines(commandArgs(TRUE)[1])) {
  paths <- strsplit(line, "\t")[[1]]
  nc <- tryCatch(nc_open(paths[1], suppress_dimvals = TRUE), error = function(e) e)
  if (inherits(nc, "error")) { writeLines(conditionMessage(nc), paste0(paths[2], ".error")); next }
  out <- file(paths[2], "wb")
  attribute(nc, 0, "")
  for (v in nc$var) variable(nc, v$name, v$dim)
  # Coordinate variables are dimensions for ncdf4.
  for (d in nc$dim) if (d$dimvarid$id >= 0) variable(nc, d$name, list(d))
  close(out)
  nc_close(nc)
}
cat(as.character(packageVersion("ncdf4")), "of R", paste(R.version$major, R.version$minor, sep = "."), "\n")
