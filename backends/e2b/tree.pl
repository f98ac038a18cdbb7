# Whole directories as records: model/tree_record.h says what these are.
my $hidden = qr{^/(proc|sys)$}; # no files

sub fields { return join('', map { "$_\0" } @_) }

# ---- out: the directory, or the file, on standard output

my $out = '';
sub give { $out .= $_[0]; if (length $out >= 65536) { say_all($out); $out = '' } }

sub gone { return $! == 2 || $! == 20 || $! == 40 || $! == 21 }

sub give_file {
    my ($p, $name) = @_;
    sysopen my $f, $p, 04000 | $nofollow or do { return if gone(); fail($!, $name) }; # O_NONBLOCK
    my $s = look("/proc/self/fd/" . fileno $f, 1) or fail($!, $name);
    return if $s->{type} ne 'f';
    give(fields('f', $name, $s->{mode} & 0777, @$s{qw(mtime uid size)}, ''));
    for (my $left = $s->{size}; $left > 0;) {
        my $n = sysread $f, my $bytes, $left < 65536 ? $left : 65536;
        fail($!, $name) unless defined $n;
        fail(10003, $name) if $n == 0;
        give($bytes);
        $left -= $n;
    }
}

sub give_directory {
    my ($dir, $prefix, $depth) = @_;
    opendir my $d, $dir or do { return if $depth && gone(); fail($!, $prefix) };
    my @names;
    while (defined(my $n = readdir $d)) {
        push @names, $n unless $n eq '.' || $n eq '..';
        fail(10004, $prefix) if @names > 50000 || $depth > 256;
    }
    closedir $d;
    for my $n (sort @names) {
        my ($p, $name) = ($dir eq '/' ? "/$n" : "$dir/$n", $prefix . $n);
        next if $p =~ $hidden;
        fail(36, $prefix) if length $name > 4000;
        my $s = look($p, 0) or next;
        if ($s->{type} eq 'f') { give_file($p, $name) }
        elsif ($s->{type} eq 'l') {
            give(fields('l', $name, $s->{mode} & 0777, @$s{qw(mtime uid)}, 0, $s->{target})) if defined $s->{target} && $s->{target} ne '';
        } elsif ($s->{type} eq 'd') {
            give(fields('d', $name, $s->{mode} & 0777, @$s{qw(mtime uid)}, 0, ''));
            give_directory($p, "$name/", $depth + 1);
        }
    }
}

# ---- in: a journal of records into a stage, and that into the directory

my ($in, $journal_at, $given_back) = (undef, 0, 0);
sub field { local $/ = "\0"; my $t = <$in>; fail(5) unless defined $t && chomp $t; $journal_at += 1 + length $t; return $t }

# What has been read of the journal makes room for what becomes of it.
sub give_back {
    return if $journal_at - $given_back < 8388608;
    my $n = $journal_at - $given_back - 4194304;
    my ($fd, $mode) = (fileno $in, 3); # PUNCH_HOLE | KEEP_SIZE
    syscall($fallocate, $fd, $mode, $given_back, $n);
    $given_back += $n;
}

# The directory of what has the name is there, and no link leads to it.
my %is_directory;
sub parents {
    my $name = shift;
    my ($up) = $name =~ m{^(.*)/} or return;
    return if $is_directory{$up};
    my $at = $stage;
    for my $part (split m{/}, $up) {
        $at .= "/$part";
        my $s = look($at, 0);
        if (!$s) { fail($!, $name) if $! != 2; mkdir $at, 0755 or fail($!, $name) }
        elsif ($s->{type} ne 'd') { fail($s->{type} eq 'l' ? 40 : 20, $name) }
    }
    %is_directory = () if keys %is_directory > 10000;
    $is_directory{$up} = 1;
}

# Nothing but a directory is in the way any more.
sub clear {
    my ($p, $name) = @_;
    my $s = look($p, 0) or return;
    fail(21, $name) if $s->{type} eq 'd';
    unlink $p or fail($!, $name);
}

sub take_file {
    my ($p, $name, $mode, $mtime, $left) = @_;
    clear($p, $name);
    sysopen my $f, $p, 0301 | $nofollow, 0600 or fail($!, $name); # O_WRONLY | O_CREAT | O_EXCL
    my $size = $left;
    while ($left > 0) {
        my $n = read $in, my $bytes, $left < 65536 ? $left : 65536;
        fail(5) unless $n;
        $journal_at += $n;
        $left -= $n;
        if ($n == 65536 && $bytes !~ /[^\0]/) { sysseek $f, $n, 1 or fail($!, $name); next }
        for (my $at = 0; $at < $n;) { my $w = syswrite $f, $bytes, $n - $at, $at; fail($!, $name) unless $w; $at += $w }
        give_back();
    }
    truncate $f, $size or fail($!, $name);
    chmod $mode, $f or fail($!, $name);
    close $f or fail($!, $name);
    set_time($p, $mtime, 0);
}

sub take_directory {
    my ($p, $name) = @_;
    my $s = look($p, 0);
    if (!$s) { mkdir $p, 0700 or fail($!, $name) }
    elsif ($s->{type} ne 'd') { fail(17, $name) }
}

sub take_link {
    my ($p, $name, $mtime, $target) = @_;
    clear($p, $name);
    symlink $target, $p or fail($!, $name);
    set_time($p, $mtime, 0x100);
}

sub take_hard_link {
    my ($p, $name, $target) = @_;
    parents($target);
    my ($a, $b) = (look("$stage/$target", 0), look($p, 0));
    fail($a ? 21 : 2, $name) if !$a || $a->{type} eq 'd';
    return if $b && $a->{ino} == $b->{ino} && $a->{dev} == $b->{dev};
    clear($p, $name);
    link "$stage/$target", $p or fail($!, $name);
}

# Would all of that directory find its place in the other? Then it is moved there, and goes.
sub entries { opendir my $d, $_[0] or fail($!, $_[1]); my @n = grep { $_ ne '.' && $_ ne '..' } readdir $d; return @n }
sub check {
    my ($from, $to, $prefix) = @_;
    my $may = may_write($to);
    for my $n (entries($from, $prefix)) {
        my ($s, $t) = (look("$from/$n", 0), look("$to/$n", 0));
        fail($!, "$prefix$n") if !$t && $! != 2;
        if ($s && $t && $s->{type} eq 'd' && $t->{type} eq 'd') { check("$from/$n", "$to/$n", "$prefix$n/"); next }
        fail($s->{type} eq 'd' ? 20 : 21, "$prefix$n") if $s && $t && ($s->{type} eq 'd' || $t->{type} eq 'd');
        fail(13, "$prefix$n") unless $may;
    }
}
sub move_in {
    my ($from, $to, $prefix) = @_;
    for my $n (entries($from, $prefix)) {
        my ($s, $t) = (look("$from/$n", 0), look("$to/$n", 0));
        if ($s && $t && $s->{type} eq 'd' && $t->{type} eq 'd') { move_in("$from/$n", "$to/$n", "$prefix$n/"); next }
        rename "$from/$n", "$to/$n" or fail($!, "$prefix$n");
    }
    rmdir $from or fail($!, $prefix);
}

my %do = (
    pack => sub {
        my $p = place(shift);
        $errors = \*STDERR;
        my $s = look($p, 0) or fail($!);
        if ($s->{type} eq 'd') { give_directory($p, '', 0) }
        elsif ($s->{type} eq 'f') { give_file($p, $p =~ m{([^/]+)$}) }
        else { fail(10001) }
        give(fields('e', '', 0, 0, 0, 0, ''));
        say_all($out);
    },
    unpack => sub {
        my ($journal, $to) = (pack('H*', shift), place(shift));
        my @directories;
        open $in, '+<:raw', $journal or fail($!);
        unlink $journal;
        my $near = nearest($to);
        $stage = "$near/" . random_name();
        mkdir $stage, 0700 or do { my $e = $!; undef $stage; fail($e) };
        while (1) {
            my ($kind, $name, $mode, $mtime, undef, $size, $target) = map { field() } 1 .. 7;
            last if $kind eq 'e';
            my $p = $name eq '' ? $stage : "$stage/$name";
            parents($name);
            if ($kind eq 'd') { take_directory($p, $name) if $name ne ''; push @directories, [$name, $mode, $mtime] }
            elsif ($kind eq 'f') { take_file($p, $name, $mode, $mtime, $size) }
            elsif ($kind eq 'l') { take_link($p, $name, $mtime, $target) }
            elsif ($kind eq 'h') { take_hard_link($p, $name, $target) }
            else { fail(22) }
            give_back();
        }
        close $in;
        my $set = sub { my ($p, $d, $mode) = @_; chmod $mode, $p or fail($!, $d->[0]); set_time($p, $d->[2], 0) };
        $set->($_->[0] eq '' ? $stage : "$stage/$_->[0]", $_, $_->[1] | 0700) for @directories;
        my $new = !look($to, 1);
        fail($!) if $new && $! != 2;
        if ($new) {
            my ($up) = $to =~ m{^(.*?)/+[^/]+/*$};
            make_path($up eq '' ? '/' : $up, 0755) or fail($!) if defined $up;
            chmod 0755, $stage;
            rename $stage, $to or fail($!);
        } else {
            my $held = alone($to);
            check($stage, $to, '');
            move_in($stage, $to, '');
        }
        undef $stage;
        for my $d (reverse @directories) {
            next if $d->[0] eq '' ? !$new : ($d->[1] & 0700) == 0700;
            my $p = $d->[0] eq '' ? $to : "$to/$d->[0]";
            my $s = look($p, $d->[0] eq '');
            $set->($p, $d, $d->[1]) if $s && $s->{type} eq 'd';
        }
    },
);
my $op = shift;
$do{$op}->(@ARGV);
